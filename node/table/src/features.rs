//! Turns a row's cells into a model's inputs, by the schema alone.
//!
//! The inputs lie in three blocks. First come categories (one-hot; all zeros if rare or never seen), the terms of texts, and
//! for columns that had gaps in training whether the cell is missing. Then come numbers, robustly scaled: x' = (x - median) / IQR, then
//! x' / sqrt(1 + (x' / 3)^2), which keeps outliers within 3 (RealMLP, Holzmueller et al. 2024). Then come the same
//! numbers in bins between octiles, piecewise linear (Gorishniy et al. 2022): of the bins below x all, of x's own the part
//! below x, of the bins above none. The outer bins go on by one width.

use crate::row::Row;
use crate::schema::{ColumnKind, Numbers, Schema};

/// Makes inputs of cells.
#[derive(Clone, Debug)]
pub struct Features {
    columns: Vec<Input>,
    /// Categories and gaps; with robust numbers; with bins.
    ends: [usize; 3],
}

#[derive(Clone, Debug)]
struct Input {
    gaps: bool,
    kind: InputKind,
}

#[derive(Clone, Debug)]
enum InputKind {
    Category(usize),
    Text(usize),
    Number(Scale),
}

#[derive(Clone, Debug)]
struct Scale {
    median: f64,
    /// Divides differences from the median; 0 if all values are equal.
    width: f64,
    /// The borders of the bins, rising.
    edges: Vec<f64>,
}

impl Scale {
    fn of(numbers: &Numbers) -> Self {
        let octile = |at: usize| f64::from(numbers.octiles[at]);
        let (range, quartiles) = (octile(8) - octile(0), octile(6) - octile(2));
        let mut edges: Vec<f64> = numbers.octiles.iter().map(|edge| f64::from(*edge)).collect();
        edges.dedup();
        Self {
            median: octile(4),
            width: if quartiles > 0.0 { quartiles } else { range / 2.0 },
            edges,
        }
    }

    fn robust(&self, value: f64) -> f64 {
        match self.width > 0.0 {
            true => {
                let scaled = (value - self.median) / self.width;
                scaled / (1.0 + (scaled / 3.0) * (scaled / 3.0)).sqrt()
            }
            false => 0.0,
        }
    }

    fn bins(&self) -> usize {
        self.edges.len() - 1
    }

    fn bin(&self, bin: usize, value: f64) -> f64 {
        let (low, high) = (self.edges[bin], self.edges[bin + 1]);
        let least = if bin == 0 { -1.0 } else { 0.0 };
        let most = if bin + 1 == self.bins() { 2.0 } else { 1.0 };
        ((value - low) / (high - low)).clamp(least, most)
    }
}

impl Features {
    /// The inputs that a schema describes.
    pub fn of(schema: &Schema) -> Self {
        let columns: Vec<Input> = schema
            .columns
            .iter()
            .map(|column| Input {
                gaps: column.missing > 0,
                kind: match &column.kind {
                    ColumnKind::Category(categories) => InputKind::Category(categories.values.len()),
                    ColumnKind::Text(words) => InputKind::Text(words.terms.len()),
                    ColumnKind::Number(numbers) => InputKind::Number(Scale::of(numbers)),
                },
            })
            .collect();
        let mut ends = [0; 3];
        for column in &columns {
            let (shared, robust, bins) = match &column.kind {
                InputKind::Category(values) | InputKind::Text(values) => (*values, 0, 0),
                InputKind::Number(scale) => (0, 1, scale.bins()),
            };
            ends[0] += shared + usize::from(column.gaps);
            ends[1] += robust;
            ends[2] += bins;
        }
        ends[1] += ends[0];
        ends[2] += ends[1];
        Self { columns, ends }
    }

    /// How many inputs a row has.
    pub fn width(&self) -> usize {
        self.ends[2]
    }

    /// How many there are without the bins: they come first.
    pub fn without_bins(&self) -> usize {
        self.ends[1]
    }

    /// Appends a row's inputs.
    pub fn write(&self, row: Row, out: &mut Vec<f32>) {
        let (start, cells) = (out.len(), row.values);
        for (at, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            match column.kind {
                InputKind::Category(values) => {
                    out.extend((0..values).map(|value| if *cell == value as f64 { 1.0 } else { 0.0 }));
                }
                InputKind::Text(terms) => {
                    let first = out.len();
                    out.resize(first + terms, 0.0);
                    for (term, weight) in row.text(at) {
                        out[first + *term as usize] = *weight;
                    }
                }
                InputKind::Number(_) => {}
            }
            if column.gaps {
                out.push(if cell.is_nan() { 1.0 } else { 0.0 });
            }
        }
        let scales = || {
            let numbers = self.columns.iter().zip(cells);
            numbers.filter_map(|(column, cell)| match &column.kind {
                InputKind::Number(scale) => Some((scale, if cell.is_nan() { scale.median } else { *cell })),
                InputKind::Category(_) | InputKind::Text(_) => None,
            })
        };
        out.extend(scales().map(|(scale, value)| scale.robust(value) as f32));
        for (scale, value) in scales() {
            out.extend((0..scale.bins()).map(|bin| scale.bin(bin, value) as f32));
        }
        debug_assert_eq!(out.len() - start, self.width());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Notation;
    use crate::schema::{Categories, Column, Format, Target};
    use crate::text::Words;

    fn schema(columns: Vec<(ColumnKind, u64)>) -> Schema {
        let column = |(at, (kind, missing))| Column {
            name: format!("c{at}"),
            format: Format::Plain,
            kind,
            missing,
        };
        Schema {
            columns: columns.into_iter().enumerate().map(column).collect(),
            target: Target::Number {
                name: "t".into(),
                mean: 0.0,
                deviation: 1.0,
                learnt: None,
                notation: Notation::default(),
            },
            ignored: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn written(schema: &Schema, values: &[f64]) -> Vec<f32> {
        written_with(schema, values, &[])
    }

    fn written_with(schema: &Schema, values: &[f64], texts: &[Vec<(u32, f32)>]) -> Vec<f32> {
        let mut out = Vec::new();
        Features::of(schema).write(Row { values, texts }, &mut out);
        out
    }

    #[test]
    fn blocks_are_categories_and_gaps_then_robust_numbers_then_bins() {
        let numbers = Numbers {
            mean: 0.0,
            deviation: 1.0,
            octiles: [0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0],
        };
        let categories = Categories {
            values: vec!["a".into(), "b".into()],
            rare: 1,
        };
        let schema = schema(vec![
            (ColumnKind::Number(numbers), 3),
            (ColumnKind::Category(categories), 0),
        ]);
        let features = Features::of(&schema);
        assert_eq!((features.width(), features.without_bins()), (1 + 2 + 1 + 7, 4));
        // The median: scaled to 0, three bins full, one begins.
        assert_eq!(
            written(&schema, &[4.0, 1.0]),
            [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
        );
        // A missing number is the median with a mark; an unknown category is no category.
        assert_eq!(
            written(&schema, &[f64::NAN, -1.0]),
            [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
        );
        // Outliers stay within 3, and the outer bins within one width.
        let far = written(&schema, &[1e12, 0.0]);
        assert_eq!((far[3], far[10], far[4]), (3.0, 2.0, 1.0));
        let far = written(&schema, &[-1e12, 0.0]);
        assert_eq!((far[3], far[10], far[4]), (-3.0, 0.0, -1.0));
        // (8 - 4) / 4 = 1, then 1 / sqrt(1 + 1/9).
        assert_eq!(
            written(&schema, &[8.0, 0.0])[3],
            (1.0f64 / (10.0f64 / 9.0).sqrt()) as f32
        );
    }

    #[test]
    fn a_text_gives_the_weight_of_each_term_and_a_missing_one_zeros() {
        let words = Words {
            terms: ["a", "b", "c"].map(str::to_owned).to_vec(),
            weights: vec![1.0; 3],
        };
        let schema = schema(vec![(ColumnKind::Text(words), 1)]);
        let texts = [vec![], vec![(0, 0.75), (2, 0.25)]];
        let of = |cell: f64| written_with(&schema, &[cell], &texts);
        assert_eq!(of(1.0), [0.75, 0.0, 0.25, 0.0]);
        assert_eq!(of(0.0), [0.0; 4]);
        assert_eq!(of(f64::NAN), [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn a_column_with_one_value_or_none_gives_zeros() {
        let flat = Numbers {
            mean: 5.0,
            deviation: 0.0,
            octiles: [5.0; 9],
        };
        assert_eq!(
            written(&schema(vec![(ColumnKind::Number(flat), 0)]), &[7.0]),
            [0.0]
        );
        let spiked = Numbers {
            mean: 0.0,
            deviation: 1.0,
            octiles: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0],
        };
        // No IQR: half the range.
        let found = written(&schema(vec![(ColumnKind::Number(spiked), 0)]), &[2.0]);
        assert_eq!(found, [(1.0f64 / (10.0f64 / 9.0).sqrt()) as f32, 0.5]);
    }
}
