//! Every half, every tie, any bytes.

use proptest::prelude::*;

use super::*;

mod integers;
mod signs;

const SIGN: u32 = 0x8000_0000;

fn encode(codec: Codec, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xab; 3];
    codec.encode(values, &mut bytes);
    assert_eq!(bytes[..3], [0xab; 3], "encode appends");
    assert_eq!(bytes.len() - 3, codec.encoded_len(values.len()));
    bytes.split_off(3)
}

fn decode(codec: Codec, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![0.5; elements];
    codec.decode(bytes, &mut values).unwrap();
    values
}

fn roundtrip(values: &[f32]) -> Vec<f32> {
    decode(Codec::F16, &encode(Codec::F16, values), values.len())
}

/// An f16 run by hand: the exponent and the halves.
fn f16_run(k: i16, halves: &[u16]) -> Vec<u8> {
    let words = [k as u16].into_iter().chain(halves.iter().copied());
    words.flat_map(u16::to_le_bytes).collect()
}

fn f16_header(bytes: &[u8]) -> i16 {
    i16::from_le_bytes([bytes[0], bytes[1]])
}

fn any_f32() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

/// Runs of a few magnitudes, so that not every run is dominated by one element.
fn finite_run() -> impl Strategy<Value = Vec<f32>> {
    let centred = (-149i32..127).prop_flat_map(|centre| {
        let element = (-30i32..=0, -2.0f64..2.0).prop_map(move |(below, mantissa)| {
            let x = (mantissa * 2f64.powi(centre + below)) as f32;
            x.clamp(f32::MIN, f32::MAX)
        });
        prop::collection::vec(element, 0..70)
    });
    let wild = any_f32().prop_map(|x| if x.is_finite() { x } else { 0.0 });
    prop_oneof![centred, prop::collection::vec(wild, 0..70)]
}

#[test]
fn all_65536_halves_decode_exactly() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let run = f16_run(0, &halves);
    let decoded = decode(Codec::F16, &run, halves.len());
    let mut added = vec![0.0; halves.len()];
    let own: Vec<f32> = (0..halves.len()).map(|i| i as f32 * 0.7 - 9e3).collect();
    Codec::F16.decode_add(&run, &own, &mut added).unwrap();
    for (i, half) in halves.iter().enumerate() {
        let expected = half::f16::from_bits(*half).to_f32();
        if expected.is_nan() {
            assert!(decoded[i].is_nan() && added[i].is_nan(), "half {half:#06x}");
        } else {
            assert_eq!(decoded[i].to_bits(), expected.to_bits(), "half {half:#06x}");
            assert_eq!(
                added[i].to_bits(),
                (expected + own[i]).to_bits(),
                "half {half:#06x}"
            );
        }
    }
}

/// Around each half below 2^15: itself, the tie with the next, and the closest f32 on both sides of the tie. The crate
/// `half` is the oracle.
#[test]
fn every_half_and_every_tie_encodes_to_nearest_even() {
    let mut values = vec![16384.0f32];
    for code in 0..0x7800u16 {
        let (this, next) = (
            half::f16::from_bits(code).to_f32(),
            half::f16::from_bits(code + 1).to_f32(),
        );
        let tie = (this + next) / 2.0;
        for x in [this, tie, tie.next_up(), tie.next_down()] {
            if x < 32768.0 {
                values.extend([x, -x]);
            }
        }
    }
    let bytes = encode(Codec::F16, &values);
    assert_eq!(f16_header(&bytes), 0);
    for (x, bytes) in values.iter().zip(bytes[2..].as_chunks::<2>().0) {
        let expected = half::f16::from_f32(*x).to_bits();
        assert_eq!(u16::from_le_bytes(*bytes), expected, "{x:?}");
    }
}

/// Any f32 pattern below 2^15, sampled densely: 2^24 of them, with every exponent.
#[test]
fn sampled_f32_encode_as_the_crate_half_does() {
    let mut values = vec![0.0f32; 1 << 12];
    for start in 0..1u32 << 11 {
        for (i, x) in (0u32..).zip(values.iter_mut()) {
            let bits = (start << 12 | i).wrapping_mul(0x9e37_79b9);
            *x = f32::from_bits((bits % 0x4700_0000) | (bits & SIGN));
        }
        values[0] = 16384.0;
        let bytes = encode(Codec::F16, &values);
        for (x, bytes) in values.iter().zip(bytes[2..].as_chunks::<2>().0) {
            assert_eq!(
                u16::from_le_bytes(*bytes),
                half::f16::from_f32(*x).to_bits(),
                "{x:?}"
            );
        }
    }
}

#[test]
fn the_exponent_puts_the_largest_just_below_the_half_s_limit() {
    for (largest, k) in [
        (0.0, 0),
        (-0.0, 0),
        (1.0, -14),
        (-1.999, -14),
        (2.0, -13),
        (16384.0, 0),
        (f32::MAX, 113),
        (f32::MIN_POSITIVE, -140),
        (f32::from_bits(1), -163),
        (f32::from_bits(0x007f_ffff), -141),
    ] {
        let bytes = encode(Codec::F16, &[0.0, largest, largest / 2.0]);
        assert_eq!(f16_header(&bytes), k, "{largest:?}");
    }
    assert_eq!(encode(Codec::F16, &[]), f16_run(0, &[]));
    assert_eq!(
        encode(Codec::F16, &[1.0, -0.5, -0.0]),
        f16_run(-14, &[0x7400, 0xf000, 0x8000])
    );
}

#[test]
fn powers_of_two_of_any_size_survive() {
    for exponent in -149..=127 {
        let x = 2f64.powi(exponent) as f32;
        assert_eq!(roundtrip(&[x, -x]), [x, -x], "2^{exponent}");
    }
}

#[test]
fn the_largest_f32_stays_finite() {
    let largest_below = 2f32.powi(127) * (2.0 - 2f32.powi(-10));
    assert_eq!(
        roundtrip(&[f32::MAX, f32::MIN, 1e38]),
        [largest_below, -largest_below, {
            let unit = 2f32.powi(126 - 10);
            (1e38 / unit).round_ties_even() * unit
        }]
    );
}

#[test]
fn what_is_not_finite_stays_so_and_spares_its_neighbours() {
    let got = roundtrip(&[1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -3.0]);
    assert_eq!(got[..3], [1.5, f32::INFINITY, f32::NEG_INFINITY]);
    assert!(got[3].is_nan());
    assert_eq!(got[4], -3.0);
    let got = roundtrip(&[f32::NAN, f32::INFINITY, 0.0, f32::MAX]);
    // Every NaN has the same bytes, whatever its sign and payload, which not every machine keeps.
    let nans = [f32::NAN, -f32::NAN, f32::from_bits(0xffff_ffff)];
    assert_eq!(encode(Codec::F16, &nans), f16_run(0, &[0x7e00; 3]));
    assert!(got[0].is_nan() && got[1] == f32::INFINITY && got[2] == 0.0 && got[3].is_finite());
    assert_eq!(roundtrip(&[f32::INFINITY])[0], f32::INFINITY);
}

#[test]
fn f32_travels_as_it_is() {
    let values = [1.5f32, -0.0, f32::MAX, f32::from_bits(1), f32::INFINITY];
    let bytes = encode(Codec::F32, &values);
    assert_eq!(bytes[..4], [0, 0, 0xc0, 0x3f]);
    let got = decode(Codec::F32, &bytes, 5);
    assert_eq!(got.map_bits(), values.to_vec().map_bits());
}

trait Bits {
    fn map_bits(self) -> Vec<u32>;
}
impl Bits for Vec<f32> {
    fn map_bits(self) -> Vec<u32> {
        self.into_iter().map(f32::to_bits).collect()
    }
}

#[test]
fn wrong_lengths_and_exponents_are_refused_and_write_nothing() {
    let mut out = [7.0f32; 3];
    for codec in Codec::ALL {
        let right = codec.encoded_len(3);
        for got in (0..right + 9).filter(|got| *got != right) {
            let bytes = vec![0; got];
            let error = Err(CodecError::Length { expected: right, got });
            assert_eq!(codec.decode(&bytes, &mut out), error);
            assert_eq!(codec.decode_add(&bytes, &[0.0; 3], &mut out), error);
        }
        let addend = Err(CodecError::Addend { expected: 3, got: 2 });
        assert_eq!(codec.decode_add(&vec![0; right], &[0.0; 2], &mut out), addend);
    }
    for k in (i16::MIN..-163).chain(114..=i16::MAX) {
        let run = f16_run(k, &[1, 2, 3]);
        assert_eq!(Codec::F16.decode(&run, &mut out), Err(CodecError::Exponent(k)));
        assert_eq!(
            Codec::F16.decode_add(&run, &[0.0; 3], &mut out),
            Err(CodecError::Exponent(k))
        );
    }
    assert_eq!(out, [7.0; 3]);
    assert!(Codec::F16.decode(&[], &mut []).is_err());
    assert_eq!(Codec::F32.decode(&[], &mut []), Ok(()));
}

#[test]
fn codecs_have_names() {
    for codec in Codec::ALL {
        assert_eq!(codec.to_string().parse(), Ok(codec));
    }
    let error = "f64".parse::<Codec>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no codec is called \"f64\": use one of f32, f16, int8, int4, sign"
    );
}

proptest! {
    #[test]
    fn f16_keeps_its_promised_precision(values in finite_run()) {
        let largest = values.iter().fold(0.0f64, |max, x| max.max(f64::from(x.abs())));
        let got = roundtrip(&values);
        for (x, got) in values.iter().zip(&got) {
            prop_assert!(got.is_finite());
            let (x, got) = (f64::from(*x), f64::from(*got));
            // Near the end of f32's range, rounding up is not possible.
            let relative = if x.abs() > 2f64.powi(127) * 1.999 { 2f64.powi(-10) } else { 2f64.powi(-11) };
            let bound = (x.abs() * relative).max(largest * 2f64.powi(-39));
            prop_assert!((x - got).abs() <= bound, "{x:e} became {got:e}, largest {largest:e}");
        }
        // Decoded values are representable: encoding them again loses nothing. The exception: if the largest was
        // rounded up to a power of two, the shared exponent would be one more, and the tiniest value would lose a
        // bit.
        let binade = |values: &[f32]| values.iter().map(|x| x.abs().to_bits() >> 23).max();
        if binade(&got) == binade(&values) {
            prop_assert_eq!(roundtrip(&got).map_bits(), got.map_bits());
        }
    }

    #[test]
    fn decode_add_is_decode_then_add(
        run in prop::collection::vec((any_f32(), any_f32()), 0..70),
    ) {
        let values: Vec<f32> = run.iter().map(|pair| pair.0).collect();
        let own: Vec<f32> = run.iter().map(|pair| pair.1).collect();
        for codec in Codec::ALL {
            let bytes = encode(codec, &values);
            let mut sums = vec![0.0; own.len()];
            codec.decode_add(&bytes, &own, &mut sums).unwrap();
            for ((sum, decoded), own) in sums.iter().zip(decode(codec, &bytes, own.len())).zip(&own) {
                let expected = decoded + own;
                prop_assert!(sum.to_bits() == expected.to_bits() || sum.is_nan() && expected.is_nan());
            }
        }
    }

    #[test]
    fn add_encode_is_decode_add_then_encode(run in prop::collection::vec((-1e3f32..1e3, -1e3f32..1e3), 0..3000)) {
        let values: Vec<f32> = run.iter().map(|pair| pair.0).collect();
        let own: Vec<f32> = run.iter().map(|pair| pair.1).collect();
        for codec in Codec::ALL {
            let bytes = encode(codec, &values);
            let mut sums = vec![0.0; own.len()];
            codec.decode_add(&bytes, &own, &mut sums).unwrap();
            let mut out = vec![0xab; 3];
            codec.add_encode(&bytes, &own, &mut vec![7.0; 5], &mut out).unwrap();
            prop_assert_eq!(&out[..3], &[0xab; 3]);
            prop_assert_eq!(&out[3..], &encode(codec, &sums));
            // By eight: the last byte has room for one more of int4, and for seven signs.
            let longer = [own.as_slice(), &[0.0; 8]].concat();
            prop_assert!(codec.add_encode(&bytes, &longer, &mut sums, &mut out).is_err());
            prop_assert_eq!(out.len(), 3 + bytes.len());
        }
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), elements in 0usize..100) {
        let own = vec![1.0; elements];
        let mut out = vec![0.0; elements];
        for codec in Codec::ALL {
            let fits = bytes.len() == codec.encoded_len(elements);
            prop_assert!(fits || codec.decode(&bytes, &mut out).is_err());
            prop_assert!(fits || codec.decode_add(&bytes, &own, &mut out).is_err());
            // The same bytes as the run they could be.
            let fitting = bytes.len() / 4 * 4;
            prop_assert_eq!(Codec::F32.decode(&bytes[..fitting], &mut vec![0.0; fitting / 4]), Ok(()));
            if bytes.len() >= 2 {
                let elements = bytes.len() / 2 - 1;
                let known = (-163..=113).contains(&f16_header(&bytes));
                let got = Codec::F16.decode(&bytes[..2 + 2 * elements], &mut vec![0.0; elements]);
                prop_assert_eq!(got.is_ok(), known);
            }
        }
    }
}

#[test]
fn what_is_no_sum_of_finite_values_is_found_out() {
    for codec in Codec::ALL {
        let summable = |values: &[f32]| {
            let mut bytes = Vec::new();
            codec.encode(values, &mut bytes);
            codec.is_summable(&bytes, values.len(), 64)
        };
        let largest = Codec::LARGEST;
        assert!(
            summable(&[0.0, -0.0, 1e-45, -1.5, largest, -largest * 64.0]),
            "{codec}"
        );
        for contributions in 1..=64 {
            let mut bytes = Vec::new();
            let sum = largest * contributions as f32;
            codec.encode(&[-sum, sum], &mut bytes);
            assert!(codec.is_summable(&bytes, 2, contributions));
            assert!(
                !codec.is_summable(&bytes, 2, contributions - 1),
                "{codec} {contributions}"
            );
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -2e38] {
            assert!(!summable(&[1.0, bad, 0.0]), "{codec} {bad}");
        }
    }
    // Exponents that no f32 needs: a run with them cannot be decoded.
    for k in [i16::MIN, -164, 114, i16::MAX] {
        let run = [k.to_le_bytes(), [0, 0x3c]].concat();
        assert!(!Codec::F16.is_summable(&run, 1, 64), "{k}");
    }
    assert!(!Codec::F16.is_summable(&[0], 0, 64));
}
