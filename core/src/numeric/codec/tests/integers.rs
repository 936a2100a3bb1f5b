//! The integers and their scales: against plain arithmetic in `f64`, at every length, with any bytes.

use super::*;

const INTEGERS: [(Codec, usize, f64); 2] = [(Codec::Int8, 256, 127.0), (Codec::Int4, 64, 7.0)];

/// 2^-126.
const SMALLEST: f32 = f32::MIN_POSITIVE;

/// Scale and codes of a block, from their definition: eight bits behind the leading one, rounded to nearest even.
fn block(values: &[f32], most: f64) -> (f32, Vec<i8>) {
    let largest = values.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    if largest <= f64::from(SMALLEST) / 2.0 {
        return (0.0, vec![0; values.len()]);
    }
    let unit = (largest / most).log2().floor().exp2() / 256.0;
    let scale = ((largest / most / unit).floor() * unit).max(f64::from(SMALLEST));
    let code = |x: &f32| (f64::from(*x) / scale).round_ties_even() as i8;
    (scale as f32, values.iter().map(code).collect())
}

/// A block's bytes from its scale and codes.
fn packed(codec: Codec, scale: u16, codes: &[i8]) -> Vec<u8> {
    let mut bytes = scale.to_le_bytes().to_vec();
    match codec {
        Codec::Int8 => bytes.extend(codes.iter().map(|code| *code as u8)),
        _ => bytes.extend(codes.chunks(2).map(|pair| {
            let high = pair.get(1).map_or(0, |code| *code as u8);
            high << 4 | pair[0] as u8 & 15
        })),
    }
    bytes
}

fn scale_bits(scale: f32) -> u16 {
    assert_eq!(
        scale.to_bits() % (1 << 15),
        0,
        "a scale has eight bits behind the leading one"
    );
    (scale.to_bits() >> 15) as u16
}

/// Checks every promise about a run of finite values.
fn check_run(values: &[f32]) {
    for (codec, size, most) in INTEGERS {
        let bytes = encode(codec, values);
        let decoded = decode(codec, &bytes, values.len());
        let blocks = values.chunks(size).map(|values| block(values, most));
        let expected: Vec<u8> = blocks
            .flat_map(|(scale, codes)| packed(codec, scale_bits(scale), &codes))
            .collect();
        assert_eq!(bytes, expected, "{codec}");
        for (values, decoded) in values.chunks(size).zip(decoded.chunks(size)) {
            let scale = f64::from(block(values, most).0.max(SMALLEST));
            let most = values.iter().fold(0.0, |max: f64, x| max.max(f64::from(x.abs())));
            // If the scale could not be smaller, the largest may be rounded up.
            let most = if scale > SMALLEST.into() {
                most
            } else {
                most + scale / 2.0
            };
            for (x, got) in values.iter().zip(decoded) {
                let error = (f64::from(*x) - f64::from(*got)).abs();
                assert!(
                    error <= scale / 2.0,
                    "{codec}: {x:e} became {got:e}, scale {scale:e}"
                );
                assert!(
                    f64::from(got.abs()) <= most,
                    "{codec}: {x:e} became {got:e}, largest {most:e}"
                );
            }
        }
        assert_eq!(encode(codec, &decoded), bytes, "{codec}: once more");
        assert!(
            codec.is_summable(&bytes, values.len(), 1) || values.iter().any(|x| x.abs() > Codec::LARGEST)
        );
    }
}

#[test]
fn every_length_up_to_1000() {
    for len in 0..=1000usize {
        let value = |i: usize| ((i * 7919 + len * 104_729) % 2003) as f32 * 1e-3 - 1.0;
        check_run(&(0..len).map(value).collect::<Vec<_>>());
    }
}

#[test]
fn bytes_per_element() {
    for (elements, int8, int4) in [
        (0, 0, 0),
        (1, 3, 3),
        (2, 4, 3),
        (3, 5, 4),
        (63, 65, 34),
        (64, 66, 34),
        (65, 67, 37),
        (256, 258, 136),
        (257, 261, 139),
        (16384, 16512, 8704),
    ] {
        assert_eq!(Codec::Int8.encoded_len(elements), int8, "{elements}");
        assert_eq!(Codec::Int4.encoded_len(elements), int4, "{elements}");
    }
}

#[test]
fn bytes_are_known() {
    let values = [7.0, -7.0, 3.5, 2.5, 0.49, -0.0, -1.5];
    let (scale, codes) = block(&values, 7.0);
    assert_eq!((scale, codes.as_slice()), (1.0, &[7, -7, 4, 2, 0, 0, -2][..]));
    // The scale is 1: exponent 127 in the upper byte.
    assert_eq!(encode(Codec::Int4, &values), [0x00, 0x7f, 0x97, 0x24, 0x00, 0x0e]);
    assert_eq!(
        encode(Codec::Int8, &[127.0, -63.5, 1.5, -127.0]),
        [0x00, 0x7f, 127, 0xc0, 2, 0x81]
    );
}

/// The bytes of some values, and the values of these bytes, are the same on all machines.
#[test]
fn the_bits_are_those_of_any_machine() {
    let mut state = 1u64;
    let mut value = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let x = f32::from_bits((state >> 32) as u32);
        if x.is_finite() { x } else { 0.0 }
    };
    let mut hasher = blake3::Hasher::new();
    for len in 0..700 {
        let values: Vec<f32> = (0..len).map(|_| value()).collect();
        let narrow: Vec<f32> = values
            .iter()
            .map(|x| f32::from_bits(x.to_bits() & 0x83ff_ffff | 0x3000_0000))
            .collect();
        for (run, (codec, ..)) in [&values, &narrow]
            .into_iter()
            .flat_map(|run| INTEGERS.map(|c| (run, c)))
        {
            let bytes = encode(codec, run);
            hasher.update(&bytes);
            for x in decode(codec, &bytes, len) {
                hasher.update(&x.to_le_bytes());
            }
        }
    }
    let digest = hasher.finalize().to_hex();
    assert_eq!(
        digest.as_str(),
        "1527c62a7df39afa223824493079898c05cc3aa9b700b7a4daaa537b0840a1a7"
    );
}

#[test]
fn the_largest_gets_the_largest_code() {
    for exponent in -117..=127 {
        for mantissa in [0u32, 1, 0x7f_ffff, 0x55_5555, 0x7e_0000, 0x7e_0001, 0x7d_ffff] {
            let largest = f32::from_bits(((exponent + 127) as u32) << 23 | mantissa);
            check_run(&[largest, largest.next_down(), -largest, largest / 3.0, 0.0]);
            for (codec, _, most) in INTEGERS {
                let bytes = encode(codec, &[largest, 0.0, -largest]);
                let low = |byte: u8| if codec == Codec::Int8 { byte } else { byte & 15 };
                assert_eq!(low(bytes[2]), most as u8, "{codec} {largest:e}");
            }
        }
    }
}

/// Around each tie: itself, and the closest f32 on both sides.
#[test]
fn ties_go_to_even() {
    for (codec, _, most) in INTEGERS {
        for scale in [
            1.0f32,
            1.5,
            511.0 / 256.0,
            257.0 / 256.0 * 1e-3f32.log2().floor().exp2(),
            3.0 * SMALLEST,
        ] {
            let ties = (0..most as usize).map(|code| (code as f32 + 0.5) * scale);
            let around = ties.flat_map(|tie| [tie, tie.next_up(), tie.next_down()]);
            let values: Vec<f32> = around.flat_map(|x| [x, -x]).collect();
            for values in values.chunks(60) {
                let values = [values, &[most as f32 * scale]].concat();
                assert_eq!(block(&values, most).0, scale, "{codec}");
                check_run(&values);
            }
        }
    }
}

#[test]
fn the_smallest_have_the_smallest_scale() {
    let tiny = f32::from_bits(1);
    for (codec, ..) in INTEGERS {
        for zeros in [[0.0, -0.0], [tiny, -tiny], [SMALLEST / 2.0, 0.0]] {
            let bytes = encode(codec, &zeros);
            assert!(bytes.iter().all(|byte| *byte == 0), "{codec} {zeros:?}");
        }
        let bytes = encode(codec, &[(SMALLEST / 2.0).next_up(), tiny]);
        assert_eq!(bytes[..3], [0x00, 0x01, 1], "{codec}");
        assert_eq!(decode(codec, &bytes, 2), [SMALLEST, 0.0]);
    }
    for k in 0..=300 {
        check_run(&[k as f32 / 2.0 * SMALLEST, SMALLEST * 1.5, -SMALLEST * 0.6, tiny]);
    }
}

#[test]
fn what_is_not_finite_makes_its_block_so_and_no_other() {
    for (codec, size, _) in INTEGERS {
        for bad in [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::from_bits(0x7f80_0001),
        ] {
            let mut values = vec![1.0; 3 * size - 1];
            values[size + 3] = bad;
            let bytes = encode(codec, &values);
            let (blocks, block) = (decode(codec, &bytes, values.len()), size..2 * size);
            for (i, x) in blocks.iter().enumerate() {
                assert_eq!(x.is_nan(), block.contains(&i), "{codec} {i}");
            }
            let long = codec.encoded_len(size);
            let marked = [&[0x80, 0xff][..], &vec![0; long - 2]].concat();
            assert_eq!(bytes[long..2 * long], marked, "{codec}");
            assert!(!codec.is_summable(&bytes, values.len(), 64));
        }
    }
}

#[test]
fn a_block_that_no_values_have_is_refused_and_writes_nothing() {
    let refused = |codec: Codec, scale: u16, codes: &[i8], error: CodecError| {
        // Behind a valid block, so that a wrong write would show.
        let size = if codec == Codec::Int8 { 256 } else { 64 };
        let bytes = [encode(codec, &vec![1.0; size]), packed(codec, scale, codes)].concat();
        let mut out = vec![5.0f32; size + codes.len()];
        let own = out.clone();
        assert_eq!(
            codec.decode(&bytes, &mut out),
            Err(error.clone()),
            "{codec} {scale:#x}"
        );
        assert_eq!(codec.decode_add(&bytes, &own, &mut out), Err(error.clone()));
        assert_eq!(out, own);
        let mut sums = vec![9];
        assert_eq!(
            codec.add_encode(&bytes, &own, &mut Vec::new(), &mut sums),
            Err(error)
        );
        assert_eq!(sums, [9]);
        assert!(!codec.is_summable(&bytes, out.len(), 64));
    };
    for (codec, _, most) in INTEGERS {
        let most = most as i8;
        // Subnormal, infinite, NaNs, and large enough that the product is not finite.
        let too_large = scale_bits(block(&[f32::MAX], f64::from(most)).0) + 1;
        for scale in [1, 0xff, too_large, 0xfeff, 0xff00, 0xff01, 0xff7f, 0xff81, 0xffff] {
            refused(codec, scale, &[most, 0, 1], CodecError::Scale(scale));
        }
        for (scale, codes) in [
            (0, [0, 1, 0]),
            (0xff80, [0, 0, -1]),
            (0x7f00, [most - 1, 0, 0]),
            (0x7f00, [0; 3]),
            (0x7f00, [most, -most - 1, 0]),
            (0x0100, [0; 3]),
            (0x0100, [most, -most - 1, 0]),
        ] {
            refused(codec, scale, &codes, CodecError::Codes);
        }
    }
    // Only zeros lie behind the last code.
    let mut bytes = encode(Codec::Int4, &[1.0, 0.5, 0.25]);
    *bytes.last_mut().unwrap() |= 0x10;
    assert_eq!(Codec::Int4.decode(&bytes, &mut [0.0; 3]), Err(CodecError::Codes));
    assert_eq!(Codec::Int4.decode(&bytes, &mut [0.0; 4]), Ok(()));
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::Int8), Just(Codec::Int4)]
}

proptest! {
    #[test]
    fn plain_arithmetic_gives_the_same(values in finite_run(), times in 1usize..15) {
        check_run(&values.repeat(times));
    }

    /// Every accepted run is the encoding of its values.
    #[test]
    fn a_run_has_one_encoding(
        codec in any_codec(),
        values in finite_run(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..4),
    ) {
        let mut bytes = encode(codec, &values);
        for (at, bit) in flips.into_iter().filter(|_| !values.is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let mut out = vec![0.5; values.len()];
        match codec.decode(&bytes, &mut out) {
            Ok(()) => prop_assert_eq!(encode(codec, &out), bytes),
            Err(_) => {
                prop_assert!(!codec.is_summable(&bytes, values.len(), 64));
                prop_assert!(out.iter().all(|x| *x == 0.5));
            }
        }
    }

    #[test]
    fn any_bytes(codec in any_codec(), bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        for elements in (0..=2 * bytes.len()).filter(|n| codec.encoded_len(*n) == bytes.len()) {
            let mut out = vec![0.5; elements];
            let taken = codec.decode(&bytes, &mut out).is_ok();
            prop_assert!(!taken || encode(codec, &out) == bytes);
            prop_assert!(taken || !codec.is_summable(&bytes, elements, 64));
        }
    }
}
