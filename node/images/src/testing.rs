//! Writes PNG files without compression, for tests here and of the whole program.

/// A PNG file: pixels by row, all samples of a pixel together, as the kind and depth of its header say.
pub fn png((width, height): (u32, u32), (kind, depth): (u8, u8), row_bytes: usize, pixels: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    for row in pixels.chunks_exact(row_bytes) {
        // Rows are not filtered.
        raw.push(0);
        raw.extend(row);
    }
    let mut zlib = vec![0x78, 1];
    let blocks = raw.chunks(0xffff).count();
    for (at, block) in raw.chunks(0xffff).enumerate() {
        let length = block.len() as u16;
        zlib.push(u8::from(at + 1 == blocks));
        zlib.extend(length.to_le_bytes());
        zlib.extend((!length).to_le_bytes());
        zlib.extend(block);
    }
    let (mut a, mut b) = (1u32, 0u32);
    for byte in &raw {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    zlib.extend((b << 16 | a).to_be_bytes());
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([depth, kind, 0, 0, 0]);
    let mut out = vec![0x89, b'P', b'N', b'G', 13, 10, 26, 10];
    for (name, data) in [(b"IHDR", &header), (b"IDAT", &zlib), (b"IEND", &Vec::new())] {
        out.extend((data.len() as u32).to_be_bytes());
        let checked = [&name[..], data].concat();
        out.extend(&checked);
        out.extend(crc(&checked).to_be_bytes());
    }
    out
}

/// A colour PNG file.
pub fn colour_png(width: u32, height: u32, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels: Vec<u8> = places.flat_map(|(x, y)| pixel(x, y)).collect();
    png((width, height), (2, 8), 3 * width as usize, &pixels)
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}
