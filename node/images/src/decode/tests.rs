//! Kinds of PNG and JPEG files, and files that are none.

use super::*;
use crate::testing::{colour_png, png};

pub(crate) const ROSE: &[u8] = include_bytes!("../../fixtures/rose.jpg");
const LEAF: &[u8] = include_bytes!("../../fixtures/leaf.jpg");
const GREY: &[u8] = include_bytes!("../../fixtures/grey.jpg");
const TURNED: &[u8] = include_bytes!("../../fixtures/turned.jpg");
const CMYK: &[u8] = include_bytes!("../../fixtures/cmyk.jpg");

fn decoded(bytes: &[u8]) -> Result<Picture, String> {
    decode(bytes, OF_FILE)
}

#[test]
fn all_kinds_of_png_become_eight_bits_and_transparent_places_white() {
    let (grey, rgb, grey_alpha, rgb_alpha) = (0, 2, 4, 6);
    for (kind, row_bytes, row, channels, expected) in [
        ((grey, 8), 2, &[7u8, 200][..], 1, &[7u8, 200][..]),
        ((grey, 16), 4, &[7, 99, 200, 1], 1, &[7, 200]),
        ((grey, 1), 1, &[0b0100_0000], 1, &[0, 255]),
        ((grey_alpha, 8), 4, &[10, 255, 10, 0], 1, &[10, 255]),
        ((rgb, 8), 6, &[1, 2, 3, 4, 5, 6], 3, &[1, 2, 3, 4, 5, 6]),
        (
            (rgb, 16),
            12,
            &[1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9],
            3,
            &[1, 2, 3, 4, 5, 6],
        ),
        (
            (rgb_alpha, 8),
            8,
            &[0, 0, 0, 128, 50, 60, 70, 255],
            3,
            &[127, 127, 127, 50, 60, 70],
        ),
    ] {
        let file = png((2, 1), kind, row_bytes, row);
        let picture = decoded(&file).unwrap();
        assert_eq!(
            (picture.channels, &picture.pixels[..]),
            (channels, expected),
            "{kind:?}"
        );
        let size = size_of(&file).unwrap();
        assert_eq!((size.width, size.height, size.grey), (2, 1, channels == 1));
    }
}

#[test]
fn jpegs_are_decoded_as_elsewhere() {
    // Pillow gives the same within two steps.
    let near = |picture: &Picture, at: usize, expected: [u8; 3]| {
        let pixel = &picture.pixels[3 * at..3 * at + 3];
        let far = |(a, b): (&u8, &u8)| a.abs_diff(*b) > 3;
        assert!(!pixel.iter().zip(&expected).any(far), "{pixel:?} {expected:?}");
    };
    let rose = decoded(ROSE).unwrap();
    assert_eq!(
        (rose.width, rose.height, rose.channels, rose.orientation),
        (24, 16, 3, 1)
    );
    near(&rose, 0, [199, 40, 58]);
    near(&decoded(LEAF).unwrap(), 0, [29, 160, 46]);
    near(&decoded(CMYK).unwrap(), 0, [254, 0, 0]);
    let grey = decoded(GREY).unwrap();
    assert_eq!((grey.channels, grey.pixels[0], grey.pixels[15]), (1, 0, 255));
    assert!(size_of(GREY).unwrap().grey && !size_of(ROSE).unwrap().grey);
}

#[test]
fn a_picture_from_a_turned_camera_is_turned_back() {
    let picture = decoded(TURNED).unwrap();
    assert_eq!(picture.orientation, 6);
    // Stored with white on top, seen with white on the right.
    let seen = crate::resize::square(&picture, 2, 1);
    assert!(
        seen[0] < 20 && seen[2] < 20 && seen[1] > 235 && seen[3] > 235,
        "{seen:?}"
    );
}

#[test]
fn what_is_no_picture_is_told() {
    for (bytes, told) in [
        (&b""[..], "it is empty"),
        (b"hello", "neither a PNG nor a JPEG"),
        (b"GIF89a...", "a GIF file; convert it"),
        (b"RIFF....WEBPVP8 ", "a WebP file; convert it"),
        (&ROSE[..60], "it is damaged"),
        (&ROSE[..1], "neither"),
    ] {
        let error = decoded(bytes).unwrap_err();
        assert!(error.contains(told) && error.trim() == error, "{error}");
    }
    let mut flipped = colour_png(4, 4, |x, y| [x as u8, y as u8, 0]);
    let middle = flipped.len() - 20;
    flipped[middle] ^= 1;
    assert!(decoded(&flipped).unwrap_err().contains("damaged"));
}

#[test]
fn a_huge_picture_is_refused_by_its_header_alone() {
    let mut file = png((1, 1), (2, 8), 3, &[0; 3]);
    for (width, height) in [(32_000u32, 32_000u32), (70_000, 1), (u32::MAX, u32::MAX), (0, 5)] {
        file[16..20].copy_from_slice(&width.to_be_bytes());
        file[20..24].copy_from_slice(&height.to_be_bytes());
        let header = [&b"IHDR"[..], &file[16..29]].concat();
        let crc = crate::testing::crc(&header);
        file[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = size_of(&file).unwrap_err();
        assert!(decoded(&file).is_err());
        println!("{error}");
        if width == 32_000 {
            assert!(
                error.contains("32000 x 32000 pixels of 3 bytes, and 100 million are the most"),
                "{error}"
            );
        }
    }
}

#[test]
fn what_a_picture_takes_to_decode_is_bounded_in_bytes() {
    let (grey, rgb, rgb_alpha) = (0, 2, 6);
    let told = |size: (u32, u32), kind: (u8, u8)| {
        let mut file = png((1, 1), kind, 8, &[0; 8]);
        file[16..20].copy_from_slice(&size.0.to_be_bytes());
        file[20..24].copy_from_slice(&size.1.to_be_bytes());
        let crc = crate::testing::crc(&[&b"IHDR"[..], &file[16..29]].concat());
        file[29..33].copy_from_slice(&crc.to_be_bytes());
        [OF_FILE, OF_REQUEST].map(|most| decode(&file, most).unwrap_err())
    };
    let [of_file, of_request] = told((10_000, 10_000), (rgb_alpha, 16));
    assert!(
        of_file.contains("10000 x 10000 pixels of 8 bytes, and 50 million are"),
        "{of_file}"
    );
    assert!(of_request.contains("and 12.5 million are"), "{of_request}");
    for (kind, size) in [
        ((rgb, 8), (5_001, 5_000)),
        ((grey, 16), (5_001, 5_000)),
        ((rgb, 16), (5_000, 3_400)),
    ] {
        let [of_file, of_request] = told(size, kind);
        assert!(of_file.contains("damaged"), "{of_file}");
        assert!(of_request.contains("are the most"), "{of_request}");
    }
}

#[test]
fn damaged_files_do_no_harm() {
    let png = colour_png(9, 7, |x, y| [x as u8, y as u8, 50]);
    for good in [&png[..], ROSE, LEAF, TURNED] {
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x55;
            let _ = decoded(&bad);
            let _ = decoded(&good[..at]);
        }
    }
}
