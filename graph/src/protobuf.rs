//! The wire format of protobuf: numbered fields, one after the other. Reading copies nothing and allocates nothing but
//! the lists of numbers that the caller asks for, which are never longer than the bytes they come from.

/// The fields of a message in their order. After an error it ends.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

/// The value of a field.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

impl<'a> Fields<'a> {
    /// The fields of a message.
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The fields, each with all of its bytes.
    pub(crate) fn with_bytes(mut self) -> impl Iterator<Item = Result<(u64, Value<'a>, &'a [u8]), String>> {
        std::iter::from_fn(move || {
            let before = self.rest;
            let field = self.next()?;
            let bytes = &before[..before.len() - self.rest.len()];
            Some(field.map(|(number, value)| (number, value, bytes)))
        })
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or("it ends inside a number")?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).ok();
        let split = count.and_then(|count| self.rest.split_at_checked(count));
        let (taken, rest) = split.ok_or("it ends inside a field")?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or("it ends inside a field")?;
        self.rest = rest;
        Ok(*taken)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), String> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.fixed()?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => Value::Fixed32(self.fixed()?),
            other => return Err(format!("it has a field of the unknown wire type {other}")),
        };
        Ok((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

const WRONG_TYPE: &str = "a field has a type that ONNX does not give it";

impl<'a> Value<'a> {
    pub(crate) fn integer(self) -> Result<i64, String> {
        match self {
            Self::Varint(value) => Ok(value as i64),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    pub(crate) fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    /// A text of at most this many bytes.
    pub(crate) fn text(self, most: usize) -> Result<&'a str, String> {
        let bytes = self.bytes()?;
        if bytes.len() > most {
            return Err(format!(
                "a name of {} bytes; at most {most} are possible",
                bytes.len()
            ));
        }
        std::str::from_utf8(bytes).map_err(|_| "a name is not UTF-8 text".into())
    }

    pub(crate) fn float(self) -> Result<f32, String> {
        match self {
            Self::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(WRONG_TYPE.into()),
        }
    }

    /// Appends repeated integers: several in one field, or one.
    pub(crate) fn integers(self, to: &mut Vec<i64>) -> Result<(), String> {
        let Self::Bytes(packed) = self else {
            to.push(self.integer()?);
            return Ok(());
        };
        let mut packed = Fields::of(packed);
        while !packed.rest.is_empty() {
            to.push(packed.varint()? as i64);
        }
        Ok(())
    }

    /// Appends repeated 32-bit floats.
    pub(crate) fn floats(self, to: &mut Vec<f32>) -> Result<(), String> {
        match self {
            Self::Bytes(packed) => to.extend(words(packed, f32::from_le_bytes)?),
            other => to.push(other.float()?),
        }
        Ok(())
    }

    /// Appends repeated 64-bit floats.
    pub(crate) fn doubles(self, to: &mut Vec<f64>) -> Result<(), String> {
        match self {
            Self::Bytes(packed) => to.extend(words(packed, f64::from_le_bytes)?),
            Self::Fixed64(bytes) => to.push(f64::from_le_bytes(bytes)),
            _ => return Err(WRONG_TYPE.into()),
        }
        Ok(())
    }
}

/// A message in the making.
#[derive(Debug, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Appends an integer field.
    pub(crate) fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    /// Appends a field of bytes, text or another message.
    pub(crate) fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }
}

/// Numbers of N bytes each, if the bytes hold a whole number of them.
pub(crate) fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(format!(
            "{} bytes are no whole count of {N}-byte numbers",
            bytes.len()
        ));
    }
    Ok(words.iter().map(|word| read(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order_and_truncation_is_an_error() {
        // Field 1 is 150, field 2 "hi", field 3 a float, field 4 packed integers.
        let bytes = [
            &[0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d][..],
            &1.5f32.to_le_bytes(),
            &[0x22, 3, 1, 0xac, 0x02],
        ]
        .concat();
        let fields: Vec<_> = Fields::of(&bytes).map(Result::unwrap).collect();
        assert_eq!(fields.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(fields[0].1.integer(), Ok(150));
        assert_eq!(fields[1].1.text(2), Ok("hi"));
        assert!(fields[1].1.text(1).is_err());
        assert_eq!(fields[2].1.float(), Ok(1.5));
        let mut integers = Vec::new();
        fields[3].1.integers(&mut integers).unwrap();
        assert_eq!(integers, [1, 300]);
        let ends = [3, 7, 12, 17];
        for end in (1..bytes.len()).filter(|end| !ends.contains(end)) {
            assert!(
                Fields::of(&bytes[..end]).any(|field| field.is_err()),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn numbers_without_end_and_lengths_beyond_the_end_are_errors() {
        for bytes in [&[0xff; 12][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f], &[0x0b]] {
            let mut fields = Fields::of(bytes);
            assert!(fields.next().is_some_and(|field| field.is_err()));
            assert!(fields.next().is_none());
        }
    }
}
