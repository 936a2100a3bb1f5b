//! Frames cut into chunks and put together again.

use super::*;
use proptest::prelude::*;

fn wire(frames: &[Vec<Bytes>]) -> Vec<u8> {
    let mut chunker = Chunker::default();
    frames
        .iter()
        .for_each(|parts| chunker.push(Frame::new(parts.clone())));
    let len = chunker.len();
    let wire = chunker.take().concat();
    assert_eq!(wire.len(), len);
    assert!(chunker.is_empty());
    wire
}

proptest! {
    #[test]
    fn frames_survive_any_cutting(
        frames in prop::collection::vec(prop::collection::vec(0usize..9000, 0..4), 0..8),
        cuts in prop::collection::vec(1usize..5000, 1..20),
    ) {
        let frames: Vec<Vec<Bytes>> = frames.iter().enumerate().map(|(i, parts)| {
            parts.iter().map(|&len| Bytes::from(vec![i as u8; len])).collect()
        }).collect();
        let wire = wire(&frames);
        let (mut deframer, mut got, mut rest) = (Deframer::default(), vec![], &wire[..]);
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            deframer.push(now);
            while let Some(frame) = deframer.next_frame().unwrap() {
                got.push(frame.to_vec());
            }
            if later.is_empty() { break; }
            rest = later;
        }
        let expected: Vec<Vec<u8>> = frames.iter().map(|parts| parts.concat()).filter(|f| !f.is_empty()).collect();
        prop_assert_eq!(got, expected);
        prop_assert_eq!(deframer.finish(), Ok(()));
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut deframer = Deframer::default();
        deframer.push(&bytes);
        while let Ok(Some(_)) = deframer.next_frame() {}
        prop_assert!(deframer.want() <= Deframer::RESERVE);
        prop_assert!(deframer.buffer().capacity() <= 2 * (Deframer::RESERVE + 2000));
    }
}

#[test]
fn a_prefix_too_large_is_an_error_and_a_cut_frame_too() {
    let mut deframer = Deframer::default();
    deframer.push(&(MAX_FRAME as u32 + 1).to_le_bytes());
    assert_eq!(
        deframer.next_frame(),
        Err(FrameError::TooLong(MAX_FRAME as u32 + 1))
    );

    let mut deframer = Deframer::default();
    deframer.push(&[5, 0, 0, 0, 1]);
    assert_eq!(deframer.next_frame(), Ok(None));
    assert_eq!(deframer.want(), 4);
    assert_eq!(deframer.finish(), Err(FrameError::Truncated));
}

#[test]
fn large_slices_are_not_copied() {
    let payload = Bytes::from(vec![7; 100_000]);
    let mut chunker = Chunker::default();
    chunker.push([Bytes::from_static(b"header"), payload.clone()].into());
    let chunks = chunker.take();
    assert_eq!(chunks.len(), 2);
    assert_eq!(chunks[0].len(), PREFIX + 6);
    assert_eq!(chunks[1].as_ptr(), payload.as_ptr());
}

#[test]
fn refusal_codes_are_distinct_and_come_back() {
    for refusal in Refusal::ALL {
        assert_eq!(Refusal::from_code(refusal.code().into()), Some(refusal));
    }
    assert_eq!(Refusal::from_code(0), None);
}
