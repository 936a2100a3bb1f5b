//! A grid of coloured characters to draw on, with dots of a quarter of a character's height in Braille patterns.

use super::super::terminal::{Color, Style};

/// The grid.
#[derive(Clone, Debug)]
pub struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<(char, Color)>,
}

/// The first of the 256 Braille patterns, in which each bit is a dot.
const BRAILLE: u32 = 0x2800;
/// The bit of each dot in a cell, by row and column.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Canvas {
    /// An empty grid.
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            cells: vec![(' ', Color::Plain); width * height],
        }
    }

    /// Writes text from a cell on; what lies outside is cut off.
    pub fn text(&mut self, x: i64, y: i64, text: &str, color: Color) {
        for (i, c) in text.chars().enumerate() {
            if let Some(cell) = self.cell(x.saturating_add(i as i64), y) {
                *cell = (c, color);
            }
        }
    }

    /// Writes text so that its middle is at a cell.
    pub fn centered(&mut self, x: i64, y: i64, text: &str, color: Color) {
        self.text(x - text.chars().count() as i64 / 2, y, text, color);
    }

    /// Writes text that ends before a cell.
    pub fn right(&mut self, x: i64, y: i64, text: &str, color: Color) {
        self.text(x - text.chars().count() as i64, y, text, color);
    }

    /// Sets a dot: two to a cell across, four down. Text stays.
    pub fn dot(&mut self, x: i64, y: i64, color: Color) {
        let Some(cell) = self.cell(x.div_euclid(2), y.div_euclid(4)) else {
            return;
        };
        let bits = match u32::from(cell.0) {
            code if (BRAILLE..BRAILLE + 256).contains(&code) => code - BRAILLE,
            code if code == u32::from(' ') => 0,
            _ => return,
        };
        let bit = DOTS[y.rem_euclid(4) as usize][x.rem_euclid(2) as usize];
        *cell = (char::from_u32(BRAILLE + (bits | bit)).unwrap_or(' '), color);
    }

    /// Sets the dots of a straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), color: Color) {
        let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().max(1.0);
        for i in 0..=steps as i64 {
            let t = i as f64 / steps;
            let at = |a: f64, b: f64| (a + (b - a) * t).round() as i64;
            self.dot(at(from.0, to.0), at(from.1, to.1), color);
        }
    }

    fn cell(&mut self, x: i64, y: i64) -> Option<&mut (char, Color)> {
        let inside = (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y);
        inside.then(|| &mut self.cells[y as usize * self.width + x as usize])
    }

    /// The rows as text with colours, without blanks at their ends.
    pub fn rows(&self, style: Style) -> Vec<String> {
        let paint = |row: &[(char, Color)]| {
            let end = row
                .iter()
                .rposition(|(c, _)| *c != ' ')
                .map_or(0, |last| last + 1);
            let same_color = row[..end].chunk_by(|a, b| a.1 == b.1);
            same_color
                .map(|run| style.paint(run[0].1, &run.iter().map(|(c, _)| *c).collect::<String>()))
                .collect()
        };
        self.cells.chunks(self.width.max(1)).map(paint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style {
        live: false,
        color: false,
    };

    #[test]
    fn text_is_cut_at_the_edges() {
        let mut canvas = Canvas::new(4, 2);
        canvas.text(2, 0, "abc", Color::Plain);
        canvas.text(-1, 1, "xyz", Color::Plain);
        canvas.text(0, 7, "no", Color::Plain);
        canvas.text(i64::MAX, 0, "no", Color::Plain);
        assert_eq!(canvas.rows(PLAIN), ["  ab", "yz"]);
    }

    #[test]
    fn dots_share_cells_and_respect_text() {
        let mut canvas = Canvas::new(2, 1);
        canvas.text(1, 0, "T", Color::Plain);
        for (x, y) in [(0, 0), (1, 0), (0, 3), (2, 0), (-1, -1), (100, 100)] {
            canvas.dot(x, y, Color::Plain);
        }
        assert_eq!(canvas.rows(PLAIN), ["⡉T"]);
        let mut canvas = Canvas::new(2, 1);
        canvas.line((0.0, 0.0), (3.0, 3.0), Color::Plain);
        assert_eq!(canvas.rows(PLAIN), ["⠑⢄"]);
    }

    #[test]
    fn colors_come_in_runs() {
        let mut canvas = Canvas::new(6, 1);
        canvas.text(0, 0, "ab", Color::Red);
        canvas.text(2, 0, "cd", Color::Green);
        let style = Style {
            live: true,
            color: true,
        };
        assert_eq!(canvas.rows(style), ["\x1b[31mab\x1b[0m\x1b[32mcd\x1b[0m"]);
    }
}
