//! Decodes PNG and JPEG files. Sizes are checked before anything is decoded.

use crate::resize::Picture;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use zune_core::bit_depth::BitDepth;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_png::PngDecoder;

/// Most pixels of a picture in a file of the user's: 300 MB in colour.
pub(crate) const OF_FILE: usize = 100_000_000;

/// Most pixels of a picture that somebody else sends: more than a camera's in most telephones.
pub(crate) const OF_REQUEST: usize = 25_000_000;

/// Most bytes of a pixel that a picture may have while it has as many as are allowed: colours and transparency of 8 bits.
const PIXEL_BYTES: usize = 4;

/// Longest side.
const LONGEST: usize = 1 << 16;

/// Most bytes of a file.
const MOST_BYTES: u64 = 256 << 20;

/// What a file's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Whether it has no colours.
    pub grey: bool,
}

/// A file that may be a picture.
enum Coded<'a> {
    Png(Box<PngDecoder<ZCursor<&'a [u8]>>>),
    Jpeg(Box<JpegDecoder<ZCursor<&'a [u8]>>>),
}

/// The size of a PNG or JPEG file's picture, from its header alone.
///
/// # Errors
///
/// If it is none, or too large.
pub fn size_of(bytes: &[u8]) -> Result<Size, String> {
    Ok(open(bytes, OF_FILE)?.1)
}

/// Decodes a PNG or JPEG file: 8 bits for each channel, and transparent places over white.
///
/// # Errors
///
/// If it is another kind of file, is damaged, or has more than `most` pixels of 4 bytes; those of 16 bits for each channel have
/// twice as many bytes.
pub fn decode(bytes: &[u8], most: usize) -> Result<Picture, String> {
    let (coded, size) = open(bytes, most)?;
    let (pixels, space, orientation) = match coded {
        Coded::Png(mut png) => {
            let pixels = png.decode_raw().map_err(|error| damaged(&format!("{error:?}")))?;
            (pixels, png.colorspace(), 1)
        }
        Coded::Jpeg(mut jpeg) => {
            let pixels = jpeg.decode().map_err(|error| damaged(&format!("{error:?}")))?;
            let orientation = jpeg.exif().and_then(|exif| orientation(exif)).unwrap_or(1);
            (pixels, jpeg.output_colorspace(), orientation)
        }
    };
    let (channels, pixels) = match space {
        Some(ColorSpace::Luma) => (1, pixels),
        Some(ColorSpace::RGB) => (3, pixels),
        Some(ColorSpace::LumaA) => (1, over_white::<1, 2>(&pixels)),
        Some(ColorSpace::RGBA) => (3, over_white::<3, 4>(&pixels)),
        other => return Err(format!("its colours are of a kind that is not read: {other:?}")),
    };
    let Size { width, height, .. } = size;
    if pixels.len() != width * height * channels {
        return Err(damaged("it has another size than its header says"));
    }
    Ok(Picture {
        width,
        height,
        channels,
        pixels,
        orientation,
    })
}

/// Reads the header of a picture, which may have `most` pixels.
fn open(bytes: &[u8], most: usize) -> Result<(Coded<'_>, Size), String> {
    let options = DecoderOptions::default()
        .set_max_width(LONGEST)
        .set_max_height(LONGEST)
        .set_strict_mode(true)
        .png_set_strip_to_8bit(true)
        .png_set_confirm_crc(true)
        .inflate_set_confirm_adler(true)
        // Plain code, which gives the same pixels on every machine.
        .set_use_unsafe(false);
    let cursor = ZCursor::new(bytes);
    let mut pixel_bytes = 3;
    let (coded, found) = match bytes {
        [0x89, b'P', b'N', b'G', ..] => {
            let mut png = PngDecoder::new_with_options(cursor, options);
            png.decode_headers()
                .map_err(|error| damaged(&format!("{error:?}")))?;
            let grey = png.colorspace().is_some_and(|space| space.is_grayscale());
            let channels = png
                .colorspace()
                .map_or(PIXEL_BYTES, |space| space.num_components());
            pixel_bytes = channels
                * if png.depth() == Some(BitDepth::Sixteen) {
                    2
                } else {
                    1
                };
            let found = png.dimensions().map(|(width, height)| (width, height, grey));
            (Coded::Png(Box::new(png)), found)
        }
        [0xff, 0xd8, 0xff, ..] => {
            let header = || {
                let mut jpeg =
                    JpegDecoder::new_with_options(ZCursor::new(bytes), options.set_strict_mode(false));
                jpeg.decode_headers().map(|()| jpeg)
            };
            let jpeg = header().map_err(|error| damaged(&format!("{error:?}")))?;
            let grey = jpeg.input_colorspace() == Some(ColorSpace::Luma);
            let space = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
            let found = jpeg.dimensions().map(|(width, height)| (width, height, grey));
            let options = options.jpeg_set_out_colorspace(space);
            (
                Coded::Jpeg(Box::new(JpegDecoder::new_with_options(cursor, options))),
                found,
            )
        }
        _ => return Err(what_else(bytes)),
    };
    let (width, height, grey) = found.ok_or_else(|| damaged("its header says no size"))?;
    if width == 0 || height == 0 {
        return Err("it has no pixels".into());
    }
    let most = most.min(most * PIXEL_BYTES / pixel_bytes);
    match width.checked_mul(height) {
        Some(pixels) if pixels <= most => Ok((coded, Size { width, height, grey })),
        _ => Err(format!(
            "it has {width} x {height} pixels of {pixel_bytes} bytes, and {} million are the most",
            (most / 100_000) as f64 / 10.0
        )),
    }
}

fn damaged(why: &str) -> String {
    // The decoders' words may end a line.
    format!("it is damaged: {}", why.trim())
}

/// Names the kind of a file that is neither PNG nor JPEG.
fn what_else(bytes: &[u8]) -> String {
    let kind = match bytes {
        [] => return "it is empty".into(),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "a WebP file",
        [b'G', b'I', b'F', b'8', ..] => "a GIF file",
        [b'B', b'M', ..] => "a BMP file",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "a TIFF file",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "a HEIC or AVIF file",
        _ => return "it is neither a PNG nor a JPEG file".into(),
    };
    format!("it is {kind}; convert it to PNG or JPEG")
}

/// Colours over white, by how transparent they are, rounded to the nearest. `ALL` counts the colours and alpha.
fn over_white<const COLOURS: usize, const ALL: usize>(pixels: &[u8]) -> Vec<u8> {
    let over = |pixel: &[u8; ALL]| -> [u8; COLOURS] {
        let alpha = u32::from(pixel[COLOURS]);
        std::array::from_fn(|at| ((u32::from(pixel[at]) * alpha + 255 * (255 - alpha) + 127) / 255) as u8)
    };
    pixels.as_chunks().0.iter().flat_map(over).collect()
}

/// The orientation that EXIF data names: the tag 0x0112 of the first directory of a TIFF file.
fn orientation(exif: &[u8]) -> Option<u8> {
    let little = match exif.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let number = |at: usize, length: usize| {
        let bytes = exif.get(at..at.checked_add(length)?)?.iter();
        let shifted = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
        Some(if little {
            bytes.rev().fold(0, shifted)
        } else {
            bytes.fold(0, shifted)
        })
    };
    let directory = number(4, 4)?;
    let entries = number(directory, 2)?;
    let mut entries = (0..entries).map(|entry| directory + 2 + 12 * entry);
    let entry = entries.find(|at| number(*at, 2) == Some(0x0112))?;
    number(entry + 8, 2).and_then(|value| u8::try_from(value).ok())
}

/// A file's bytes. It must be a plain file of at most 256 MB.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_symlink() {
        return Err("it is a symbolic link; put the file itself there".into());
    }
    if !metadata.is_file() {
        return Err("it is no plain file".into());
    }
    if metadata.len() > MOST_BYTES {
        return Err(format!("it has more than {} MB", MOST_BYTES >> 20));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests;
