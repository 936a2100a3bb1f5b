//! Divides rows into train, validation and test: by the number of a row, or by groups, time or a column.
//!
//! Never by a row's text. Equal rows would lie on one side, and their twins with the other label on the other. On the
//! Titanic's table such a test gives good models an AUC of 0.5.

use std::collections::BTreeMap;

/// The rows of each part, by rising number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// To learn from.
    pub train: Vec<usize>,
    /// To choose models by.
    pub validation: Vec<usize>,
    /// To judge by, once.
    pub test: Vec<usize>,
}

/// A part of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// To learn from.
    Train,
    /// To choose models by.
    Validation,
    /// To judge by, once.
    Test,
}

impl Part {
    /// The part that a word in a column names.
    pub fn named(word: &str) -> Option<Self> {
        match word.to_lowercase().as_str() {
            "train" | "training" => Some(Self::Train),
            "val" | "valid" | "validation" | "dev" => Some(Self::Validation),
            "test" => Some(Self::Test),
            _ => None,
        }
    }
}

/// One tenth, rounded.
fn tenth(count: usize) -> usize {
    (count + 5) / 10
}

/// Classes too small for a tenth of their own are divided only if they have this many rows together; a guess.
const TOGETHER: usize = 50;

/// The place of a row or a group in the lottery.
fn key(bytes: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"annulus split\0").update(bytes);
    let mut first = [0; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

/// Draws these rows in the order of their keys.
fn drawn(rows: &mut [usize]) {
    rows.sort_by_cached_key(|row| (key(&(*row as u64).to_le_bytes()), *row));
}

/// The numbers below `count` in an order that looks random and is the same everywhere.
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_cached_key(|row| key(&[(*row as u64).to_le_bytes(), seed.to_le_bytes()].concat()));
    order
}

impl Split {
    /// A tenth of each class is the test, another the validation. For numbers, all rows are one class.
    pub fn by_row(classes: &[usize]) -> Self {
        Self::completed(vec![Part::Train; classes.len()], classes, true, true)
    }

    /// As a column says. Parts that it does not name are drawn from its training rows.
    pub fn given(parts: Vec<Part>, classes: &[usize]) -> Self {
        let lacks = |part| !parts.contains(&part);
        let (test, validation) = (lacks(Part::Test), lacks(Part::Validation));
        Self::completed(parts, classes, test, validation)
    }

    /// Draws the parts that are lacking from the training rows.
    fn completed(mut parts: Vec<Part>, classes: &[usize], test: bool, validation: bool) -> Self {
        let mut of_class = BTreeMap::<usize, Vec<usize>>::new();
        for (row, class) in classes.iter().enumerate() {
            if parts[row] == Part::Train {
                of_class.entry(*class).or_default().push(row);
            }
        }
        let lacking = [test.then_some(Part::Test), validation.then_some(Part::Validation)];
        let lacking: Vec<Part> = lacking.into_iter().flatten().collect();
        let mut small = Vec::new();
        for mut rows in of_class.into_values() {
            drawn(&mut rows);
            let count = tenth(rows.len());
            if count == 0 {
                small.push(rows);
                continue;
            }
            let mut next = rows.into_iter();
            for part in &lacking {
                next.by_ref().take(count).for_each(|row| parts[row] = *part);
            }
        }
        // Many classes that are too small for a tenth of their own give a tenth of their rows together, at most one of a class to
        // each part. Those of one or two rows stay in training, where they are needed.
        small.retain(|rows| rows.len() > lacking.len());
        let count = match small.iter().map(Vec::len).sum() {
            rows if rows >= TOGETHER => tenth(rows),
            _ => 0,
        };
        for (at, part) in lacking.iter().enumerate() {
            let mut candidates: Vec<usize> = small.iter().map(|rows| rows[at]).collect();
            drawn(&mut candidates);
            candidates.iter().take(count).for_each(|row| parts[*row] = *part);
        }
        Self::of(&parts)
    }

    /// Rows of one group stay together. Groups are drawn until they hold a tenth of the rows.
    pub(crate) fn by_group(groups: &[&str]) -> Self {
        let mut counts = BTreeMap::<&str, usize>::new();
        for group in groups {
            *counts.entry(group).or_default() += 1;
        }
        let mut order: Vec<&str> = counts.keys().copied().collect();
        order.sort_by_cached_key(|group| (key(group.as_bytes()), *group));
        let (wanted, mut before, mut validates) = (tenth(groups.len()), 0, false);
        let mut part = BTreeMap::new();
        for group in order {
            let here = match before {
                rows if rows < wanted => Part::Test,
                // Also where the test's last group was large.
                rows if rows < 2 * wanted || !validates => Part::Validation,
                _ => Part::Train,
            };
            validates |= here == Part::Validation;
            part.insert(group, here);
            before += counts[group];
        }
        Self::of(&groups.iter().map(|group| part[group]).collect::<Vec<_>>())
    }

    /// The last tenth of the order is the test, the tenth before it the validation.
    pub(crate) fn by_order(order: &[usize]) -> Self {
        let mut parts = vec![Part::Train; order.len()];
        let wanted = tenth(order.len());
        let mut last = order.iter().rev();
        for part in [Part::Test, Part::Validation] {
            last.by_ref().take(wanted).for_each(|row| parts[*row] = part);
        }
        Self::of(&parts)
    }

    fn of(parts: &[Part]) -> Self {
        let of = |wanted| (0..parts.len()).filter(|row| parts[*row] == wanted).collect();
        Self {
            train: of(Part::Train),
            validation: of(Part::Validation),
            test: of(Part::Test),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn parts(split: &Split) -> [&Vec<usize>; 3] {
        [&split.train, &split.validation, &split.test]
    }

    /// Each row is in one part.
    fn is_partition(split: &Split, rows: usize) -> bool {
        let mut all: Vec<usize> = parts(split).into_iter().flatten().copied().collect();
        all.sort_unstable();
        all == (0..rows).collect::<Vec<_>>()
    }

    /// Whether rows with equal text are divided like rows with different text: what a good split gives and a hash of the
    /// text does not.
    fn divides_equal_rows(divide: impl Fn(&[&str]) -> Split) -> bool {
        let split = divide(&["male,3rd,died"; 1000]);
        parts(&split).iter().all(|part| part.len() >= 50)
    }

    #[test]
    fn equal_rows_are_divided_and_a_hash_of_their_text_would_be_noticed() {
        assert!(divides_equal_rows(|rows| Split::by_row(&vec![0; rows.len()])));
        assert!(!divides_equal_rows(Split::by_group));
    }

    #[test]
    fn the_keys_are_pinned() {
        // python: int.from_bytes(blake3(b"annulus split\0" + (7).to_bytes(8, "little")).digest()[:8], "little")
        assert_eq!(key(&7u64.to_le_bytes()), PINNED);
    }

    const PINNED: u64 = 7_838_788_086_875_907_849;

    #[test]
    fn many_small_classes_are_divided_and_none_is_lost_to_training() {
        let of =
            |classes: usize, each: usize| (0..classes * each).map(|row| row % classes).collect::<Vec<_>>();
        let classes = of(500, 4);
        let split = Split::by_row(&classes);
        assert_eq!(parts(&split).map(Vec::len), [1_600, 200, 200]);
        let learnt: BTreeSet<usize> = split.train.iter().map(|row| classes[*row]).collect();
        assert_eq!(learnt.len(), 500);
        assert!(is_partition(&split, classes.len()));
        // Of a class with a row or two nothing can be spared.
        for each in [1, 2] {
            let split = Split::by_row(&of(50, each));
            assert_eq!((split.validation.len(), split.test.len()), (0, 0));
        }
    }

    #[test]
    fn three_large_groups_make_three_parts() {
        let groups: Vec<&str> = ["a", "b", "c"].into_iter().cycle().take(90).collect();
        assert_eq!(parts(&Split::by_group(&groups)).map(Vec::len), [30, 30, 30]);
    }

    proptest! {
        #[test]
        fn shares_of_classes_are_right_within_a_row(classes in prop::collection::vec(0usize..4, 1..300)) {
            let split = Split::by_row(&classes);
            prop_assert!(is_partition(&split, classes.len()));
            for class in 0..4 {
                let count = |rows: &[usize]| rows.iter().filter(|row| classes[**row] == class).count();
                let all = count(&(0..classes.len()).collect::<Vec<_>>()) as f64;
                for part in [&split.test, &split.validation] {
                    prop_assert!((count(part) as f64 - all / 10.0).abs() <= 0.5);
                }
            }
        }

        #[test]
        fn groups_are_never_divided(groups in prop::collection::vec("[a-z]", 1..300)) {
            let names: Vec<&str> = groups.iter().map(String::as_str).collect();
            let split = Split::by_group(&names);
            prop_assert!(is_partition(&split, names.len()));
            let of = |rows: &[usize]| rows.iter().map(|row| names[*row]).collect::<BTreeSet<_>>();
            let (train, validation, test) = (of(&split.train), of(&split.validation), of(&split.test));
            prop_assert!(train.is_disjoint(&test) && train.is_disjoint(&validation) && test.is_disjoint(&validation));
        }

        #[test]
        fn time_goes_on_from_part_to_part(times in prop::collection::vec(0u8..200, 10..300)) {
            let mut order: Vec<usize> = (0..times.len()).collect();
            order.sort_by_key(|row| (times[*row], *row));
            let split = Split::by_order(&order);
            prop_assert!(is_partition(&split, times.len()));
            let latest = |rows: &[usize]| rows.iter().map(|row| times[*row]).max().unwrap();
            let first = |rows: &[usize]| rows.iter().map(|row| times[*row]).min().unwrap();
            prop_assert!(latest(&split.train) <= first(&split.validation));
            prop_assert!(latest(&split.validation) <= first(&split.test));
        }

        #[test]
        fn parts_that_a_column_lacks_are_drawn_from_its_training_rows(words in prop::collection::vec(0usize..3, 60..300)) {
            let classes = vec![0; words.len()];
            let named: Vec<Part> = words.iter().map(|word| [Part::Train, Part::Test, Part::Train][*word]).collect();
            let split = Split::given(named.clone(), &classes);
            prop_assert!(is_partition(&split, words.len()));
            prop_assert_eq!(split.test.len(), named.iter().filter(|part| **part == Part::Test).count());
            prop_assert_eq!(split.validation.len(), tenth(words.len() - split.test.len()));
        }
    }
}
