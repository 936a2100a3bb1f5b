//! Signs and their magnitudes: against plain arithmetic in `f64`, at every length, with any bytes.

use super::*;

const BLOCK: usize = 256;

/// 2^-118.
const SMALLEST: f64 = 1.0 / (1u128 << 118) as f64;

/// The decoded magnitude of a block, by definition; none where rounding may decide it.
fn block(values: &[f32]) -> Option<f64> {
    let mean = values.iter().map(|x| f64::from(x.abs())).sum::<f64>() / values.len() as f64;
    let cut = |mean: f64| {
        let unit = mean.log2().floor().exp2() / 256.0;
        let scale = (mean / unit).floor() * unit;
        if scale < SMALLEST { 0.0 } else { scale }
    };
    let near = [1.0 - 1e-5, 1.0, 1.0 + 1e-5].map(|part| cut(mean * part));
    (near[0] == near[2]).then_some(near[1])
}

/// Checks every promise about a run of finite values. Returns how many magnitudes were compared.
fn check_run(values: &[f32]) -> usize {
    let bytes = encode(Codec::Sign, values);
    let decoded = decode(Codec::Sign, &bytes, values.len());
    let mut compared = 0;
    for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
        let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let magnitude = decoded[0].abs();
        assert!(magnitude <= largest, "{magnitude:e} of at most {largest:e}");
        if let Some(expected) = block(values) {
            assert_eq!(f64::from(magnitude), expected, "{} values", values.len());
            compared += 1;
        }
        for (x, got) in values.iter().zip(decoded) {
            assert_eq!(got.abs(), magnitude);
            assert!(magnitude == 0.0 || got.is_sign_negative() == x.is_sign_negative());
        }
    }
    assert_eq!(encode(Codec::Sign, &decoded), bytes, "once more");
    assert!(
        Codec::Sign.is_summable(&bytes, values.len(), 1) || values.iter().any(|x| x.abs() > Codec::LARGEST)
    );
    compared
}

#[test]
fn every_length_up_to_1000() {
    let mut compared = 0;
    for len in 0..=1000usize {
        let value = |i: usize| ((i * 7919 + len * 104_729) % 2003) as f32 * 1e-3 - 1.0;
        compared += check_run(&(0..len).map(value).collect::<Vec<_>>());
    }
    assert!(compared > 2000, "{compared}");
}

#[test]
fn bytes_per_element() {
    for (elements, bytes) in [
        (0, 0),
        (1, 3),
        (8, 3),
        (9, 4),
        (255, 34),
        (256, 34),
        (257, 37),
        (16384, 2176),
    ] {
        assert_eq!(Codec::Sign.encoded_len(elements), bytes, "{elements}");
    }
}

#[test]
fn bytes_are_known() {
    // The mean is 1: exponent 127 in the upper byte.
    let values = [1.0, -2.0, 0.0, -0.0, 0.5, -1.5, 2.0, -1.0, -1.0];
    assert_eq!(encode(Codec::Sign, &values), [0x00, 0x7f, 0b1010_1010, 1]);
    let bytes = [0x80, 0x7f, 0b0000_0101];
    assert_eq!(decode(Codec::Sign, &bytes, 3), [-1.5, 1.5, -1.5]);
    assert_eq!(encode(Codec::Sign, &[0.0, -0.0]), [0, 0, 0]);
    assert_eq!(encode(Codec::Sign, &[f32::NAN, -1.0]), [0x80, 0xff, 0]);
}

#[test]
fn what_has_one_magnitude_is_as_it_was() {
    for exponent in -118..=127 {
        let magnitude = (2.0 - 2f32.powi(-8)) * 2f32.powi(exponent);
        for len in [1, 3, 200, 256, 300] {
            let run: Vec<f32> = (0..len)
                .map(|i| if i % 3 == 0 { -magnitude } else { magnitude })
                .collect();
            assert_eq!(
                decode(Codec::Sign, &encode(Codec::Sign, &run), len),
                run,
                "2^{exponent}"
            );
        }
    }
}

#[test]
fn what_no_values_are_encoded_to_is_refused() {
    let refused = |bytes: &[u8], elements| Codec::Sign.decode(bytes, &mut vec![0.0; elements]).unwrap_err();
    // A sign behind the last value, and signs where there is no magnitude.
    assert_eq!(refused(&[0x00, 0x7f, 0b100], 2), CodecError::Codes);
    assert_eq!(refused(&[0x00, 0x00, 1], 2), CodecError::Codes);
    assert_eq!(refused(&[0x80, 0xff, 1], 2), CodecError::Codes);
    // Too small, infinite, another NaN, negative.
    for scale in [1u16, 0x04ff, 0x7f80 << 1, 0xff81, 0xffff] {
        let [low, high] = scale.to_le_bytes();
        assert_eq!(
            refused(&[low, high, 0], 2),
            CodecError::Scale(scale),
            "{scale:#06x}"
        );
    }
}

proptest! {
    #[test]
    fn it_keeps_its_promises(values in finite_run()) {
        check_run(&values);
    }

    #[test]
    fn bytes_that_it_takes_are_what_it_gives(bytes in prop::collection::vec(any::<u8>(), 3..80), missing in 0usize..8) {
        let elements = (8 * (bytes.len() - 2)).saturating_sub(missing).clamp(1, BLOCK);
        let bytes = &bytes[..Codec::Sign.encoded_len(elements).min(bytes.len())];
        let mut values = vec![0.0; elements];
        if Codec::Sign.decode(bytes, &mut values).is_ok() {
            prop_assert_eq!(encode(Codec::Sign, &values), bytes);
        }
    }
}
