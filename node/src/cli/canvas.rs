//! A grid of coloured characters to draw on, with dots of a quarter of a character's height in Braille patterns, and charts of
//! losses on it.

use super::human;
use super::terminal::{Color, Style};
use annulus_net::printable::printable_line;

/// The grid.
#[derive(Clone, Debug)]
pub struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<(char, Color)>,
}

/// Where a part of a picture is, in cells: its upper left corner, width and height.
pub type Area = (i64, i64, i64, i64);

/// How losses lie between the bottom of a chart and its top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from the least to the greatest.
    Linear,
    /// By their logarithms, and over a decade at least, so that the first few do not fill the chart.
    Decades,
}

/// Losses from left to right, each with where it lies across, and their colour.
pub type Curve = (Vec<(f64, f64)>, Color);

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
        for (i, c) in printable_line(text, usize::MAX).chars().enumerate() {
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

    /// Draws losses and their axes, a later curve over an earlier one; `ends` are the values at the ends of the lower axis. Noise
    /// does not fill the chart: what shares a column of dots is one point. Returns what finds the cell of a value on that axis,
    /// or nothing if there is no loss yet.
    pub fn chart(
        &mut self,
        (x, y, w, h): Area,
        ends: (f64, f64),
        scale: Scale,
        curves: &[Curve],
    ) -> Option<impl Fn(f64) -> i64 + use<>> {
        let share = move |at: f64| ((at - ends.0) / (ends.1 - ends.0).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let column = |at: f64| (share(at) * (2 * (w - 6)) as f64).floor();
        let fits = |(_, loss): &&(f64, f64)| loss.is_finite() && (scale == Scale::Linear || *loss > 0.0);
        let thinned = |(points, color): &Curve| {
            let points: Vec<_> = points.iter().filter(fits).copied().collect();
            let columns = points.chunk_by(|a, b| column(a.0) == column(b.0));
            let mean = |part: &[(f64, f64)]| {
                (
                    part[0].0,
                    part.iter().map(|p| p.1).sum::<f64>() / part.len() as f64,
                )
            };
            (columns.map(mean).collect(), *color)
        };
        let curves: Vec<Curve> = curves.iter().map(thinned).collect();
        let losses = || curves.iter().flat_map(|(points, _)| points).map(|p| p.1);
        let (Some(high), Some(least)) = (losses().reduce(f64::max), losses().reduce(f64::min)) else {
            self.centered(x + w / 2, y + h / 2, "the loss will be drawn here", Color::Dim);
            return None;
        };
        let (low, height): (f64, fn(f64) -> f64) = match scale {
            Scale::Linear => (least, |loss| loss),
            Scale::Decades => (least.min(high / 10.0), f64::ln),
        };
        let labels = [(human::loss(high), y), (human::loss(low), y + h - 2)];
        let left = x + 1 + labels.iter().map(|(text, _)| text.len()).fold(5, usize::max) as i64;
        for (text, y) in labels {
            self.right(left - 1, y, &text, Color::Dim);
        }
        (y..y + h - 1).for_each(|y| self.text(left - 1, y, "│", Color::Dim));
        let axis = format!("└{}", "─".repeat((x + w - left).max(0) as usize));
        self.text(left - 1, y + h - 1, &axis, Color::Dim);
        let (dots_x, dots_y) = ((2 * (x + w - left) - 1) as f64, (4 * (h - 1) - 1) as f64);
        let across = move |at: f64| (2 * left) as f64 + share(at) * dots_x;
        let place = |(at, loss): (f64, f64)| {
            let range = (height(high) - height(low)).max(f64::MIN_POSITIVE);
            let depth = (height(high) - height(loss)) / range;
            (across(at), (4 * y) as f64 + depth * dots_y)
        };
        for (points, color) in &curves {
            for pair in points.windows(2) {
                self.line(place(pair[0]), place(pair[1]), *color);
            }
        }
        Some(move |at| (across(at) / 2.0) as i64)
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

    #[test]
    fn a_chart_has_its_axes_and_what_is_no_loss_is_left_out() {
        let mut canvas = Canvas::new(40, 5);
        let nothing = [
            (vec![(1.0, f64::NAN)], Color::Plain),
            (vec![(1.0, 0.0)], Color::Plain),
        ];
        assert!(
            canvas
                .chart((0, 0, 40, 5), (0.0, 9.0), Scale::Decades, &nothing)
                .is_none()
        );
        assert!(canvas.rows(PLAIN)[2].contains("drawn here"));
        let mut canvas = Canvas::new(20, 5);
        let falls = (vec![(0.0, 8.0), (3.0, f64::NAN), (9.0, 2.0)], Color::Plain);
        let column = canvas.chart((0, 0, 20, 5), (0.0, 9.0), Scale::Linear, &[falls]);
        let column = column.expect("there are losses");
        assert_eq!((column(0.0), column(9.0), column(99.0)), (6, 19, 19));
        let rows = canvas.rows(PLAIN);
        assert_eq!(
            rows,
            [
                "8.000│⠑⠢⢄⡀",
                "     │   ⠈⠑⠤⣀",
                "     │       ⠉⠒⢄⡀",
                "2.000│          ⠈⠑⠢⢄",
                "     └──────────────",
            ]
        );
    }

    #[test]
    fn what_shares_a_column_is_one_point() {
        let noise = (0..9000).map(|i| (f64::from(i), if i % 2 == 0 { 1.0 } else { 3.0 }));
        let noise = (noise.collect(), Color::Plain);
        let mut canvas = Canvas::new(20, 5);
        canvas.chart((0, 0, 20, 5), (0.0, 9000.0), Scale::Linear, &[noise]);
        let rows = canvas.rows(PLAIN);
        assert!(
            rows[0].starts_with("2.00") && rows[3].starts_with("1.99"),
            "{rows:?}"
        );
    }
}
