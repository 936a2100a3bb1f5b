//! The many ways in which people write numbers, dates and gaps.

use super::super::*;
use super::options;
use crate::options::Log;
use crate::schema::{ColumnKind, DatePart, Format, Learnt};

/// A table of the column x and others, with a price to predict.
fn read(
    rows: usize,
    header: &str,
    row: impl Fn(usize) -> String,
    options: &Options,
) -> Result<Table, TableError> {
    let lines: String = (0..rows).map(|at| row(at) + "\n").collect();
    Table::read("t.csv", format!("{header}\n{lines}").as_bytes(), options)
}

/// The numbers of the first column, if it is one of numbers.
fn numbers_of(cell: impl Fn(usize) -> String, separator: char) -> Result<Vec<f64>, String> {
    let row = |at: usize| format!("\"{}\"{separator}{}", cell(at), at * 7 % 50);
    let table = read(60, &format!("x{separator}y"), row, &options("y")).map_err(|error| error.to_string())?;
    match table.schema.columns.first() {
        Some(Column {
            kind: ColumnKind::Number(_),
            ..
        }) => Ok((0..60).map(|row| table.cells(row).values[0]).collect()),
        _ => Err(table.describe()),
    }
}

#[test]
fn numbers_are_read_as_people_write_them() {
    let wanted: Vec<f64> = (0..60).map(|at| 1000.0 + 13.25 * at as f64).collect();
    let whole = |at: usize| (1000.0 + 13.25 * at as f64) as u64;
    let part = |at: usize| [0, 25, 50, 75][at % 4];
    for (form, cell) in [
        (
            "1013,25",
            Box::new(move |at| format!("{},{:02}", whole(at), part(at))) as Box<dyn Fn(usize) -> String>,
        ),
        (
            "1.013,25",
            Box::new(move |at| format!("1.{:03},{:02}", whole(at) - 1000, part(at))),
        ),
        (
            "1,013.25",
            Box::new(move |at| format!("1,{:03}.{:02}", whole(at) - 1000, part(at))),
        ),
        (
            "1 013.25",
            Box::new(move |at| format!("1 {:03}.{:02}", whole(at) - 1000, part(at))),
        ),
        (
            "$1,013.25",
            Box::new(move |at| format!("$1,{:03}.{:02}", whole(at) - 1000, part(at))),
        ),
        (
            "1013.25 EUR",
            Box::new(move |at| format!("{}.{:02} EUR", whole(at), part(at))),
        ),
        (
            "1013.25%",
            Box::new(move |at| format!("{}.{:02}%", whole(at), part(at))),
        ),
        (
            "'1013.25",
            Box::new(move |at| format!("'{}.{:02}", whole(at), part(at))),
        ),
    ] {
        for separator in [',', ';'] {
            assert_eq!(
                numbers_of(&cell, separator).as_ref(),
                Ok(&wanted),
                "{form} {separator}"
            );
        }
    }
    // Negative ones in parentheses.
    let signed = numbers_of(
        |at| {
            if at % 2 == 0 {
                format!("({}.5)", at + 7)
            } else {
                format!("{}.5", at + 7)
            }
        },
        ',',
    );
    assert_eq!(signed.unwrap()[..3], [-7.5, 8.5, -9.5]);
}

#[test]
fn one_column_tells_of_the_others_whether_a_comma_is_a_point() {
    let row = |at: usize| format!("1.{:03};{},5;{}", 100 + 3 * at, at % 9, at * 7 % 50);
    let table = read(60, "large;small;y", row, &options("y")).unwrap();
    assert_eq!(table.cells(3).values, [1109.0, 3.5]);
    let row = |at: usize| format!("1.{:03};{}.5;{}", 100 + 3 * at, at % 9, at * 7 % 50);
    let table = read(60, "large;small;y", row, &options("y")).unwrap();
    assert_eq!(table.cells(3).values, [1.109, 3.5]);
}

#[test]
fn marks_of_missing_values_cost_no_column_of_numbers_and_no_category() {
    for mark in [
        "-", "None", "none", "n/a", "#N/A", "<NA>", "NaT", ".", "#DIV/0!", "unknown", "#N/A N/A", "#NA",
        "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "nan",
        "null", "",
    ] {
        let found = numbers_of(
            |at| {
                if at % 5 == 2 {
                    mark.into()
                } else {
                    format!("{}.5", at * at)
                }
            },
            ',',
        );
        let found = found.unwrap_or_else(|told| panic!("{mark}: {told}"));
        assert!(found[2].is_nan() && found[3] == 9.5, "{mark}");
        // Few different ages are numbers all the same.
        let ages = numbers_of(
            |at| {
                if at % 5 == 2 {
                    mark.into()
                } else {
                    (20 + at % 40).to_string()
                }
            },
            ',',
        );
        assert!(ages.is_ok_and(|ages| ages[2].is_nan()), "{mark}");
        let row = |at: usize| {
            let colour = if at % 5 == 2 {
                mark
            } else {
                ["red", "blue"][at % 2]
            };
            format!("{colour},{},{}", at % 9, at * 7 % 50)
        };
        let table = read(60, "colour,x,y", row, &options("y")).unwrap();
        assert_eq!(table.schema.columns.len(), 2, "{mark}");
    }
}

#[test]
fn a_column_of_numbers_and_words_tells_which_words() {
    let row = |words: [&'static str; 2]| {
        move |at: usize| {
            let x = if at % 5 == 2 {
                words[at % 2].to_owned()
            } else {
                format!("{}", at * at)
            };
            format!("{x},{},{}", at % 9, at * 7 % 50)
        }
    };
    let told = read(60, "x,z,y", row(["n.b.", "n.b."]), &options("y"))
        .unwrap()
        .describe();
    assert!(told.contains("x (48 numbers and 12 times \"n.b.\""), "{told}");
    let few = |at: usize| {
        let x = if at % 5 == 2 {
            "n.b.".to_owned()
        } else {
            (at % 9).to_string()
        };
        format!("{x},{},{}", at % 7, at * 7 % 50)
    };
    let told = read(60, "x,z,y", few, &options("y")).unwrap().describe();
    assert!(told.contains("category  x ("), "{told}");
    assert!(
        told.contains("warning: column x has 48 numbers and 12 times \"n.b.\""),
        "{told}"
    );
}

/// Days after 2023-11-20 in a form.
fn date(form: &str, day: usize) -> String {
    let date = time::Date::from_julian_day(2_460_269 + day as i32).unwrap();
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    match form {
        "ISO" => format!("{year}-{month:02}-{day:02}"),
        "DD.MM.YYYY" => format!("{day:02}.{month:02}.{year}"),
        "DD/MM/YYYY" => format!("{day:02}/{month:02}/{year}"),
        "MM/DD/YYYY" => format!("{month:02}/{day:02}/{year}"),
        "YYYYMMDD" => format!("{year}{month:02}{day:02}"),
        "D Mon YYYY" => format!("{day} {} {year}", &date.month().to_string()[..3]),
        "with time" => format!("{year}-{month:02}-{day:02} 07:30:00"),
        _ => unreachable!(),
    }
}

const FORMS: [&str; 7] = [
    "ISO",
    "DD.MM.YYYY",
    "DD/MM/YYYY",
    "MM/DD/YYYY",
    "YYYYMMDD",
    "D Mon YYYY",
    "with time",
];

#[test]
fn rows_are_divided_by_dates_in_any_form_alike() {
    let split = |form: &str| {
        let row = |at: usize| format!("{},{},{}", date(form, at * 89 % 1000), at % 9, at * 7 % 50);
        let by = Options {
            split_time: "when".into(),
            ..options("y")
        };
        let table = read(300, "when,x,y", row, &by).unwrap();
        (table.rows.clone(), table.divided.clone())
    };
    let (rows, told) = split("ISO");
    let days = |rows: &[usize]| rows.iter().map(|row| row * 89 % 1000).collect::<Vec<_>>();
    assert!(days(&rows.train).iter().max() < days(&rows.validation).iter().min());
    assert!(days(&rows.validation).iter().max() < days(&rows.test).iter().min());
    assert!(
        told.starts_with("split by when (train 2023-11-20 to 2026-"),
        "{told}"
    );
    for form in FORMS {
        assert_eq!(split(form), (rows.clone(), told.clone()), "{form}");
    }
}

#[test]
fn what_cannot_be_ordered_divides_nothing() {
    let told = |cell: &dyn Fn(usize) -> String, kinds: &[(&str, Kind)]| {
        let by = Options {
            split_time: "when".into(),
            columns: kinds
                .iter()
                .map(|(name, kind)| ((*name).to_owned(), *kind))
                .collect(),
            ..options("y")
        };
        match read(
            60,
            "when,x,y",
            |at| format!("{},{},{}", cell(at), at % 9, at * 7 % 50),
            &by,
        ) {
            Ok(table) => table.divided,
            Err(error) => error.to_string(),
        }
    };
    let either = |at: usize| format!("{:02}/{:02}/2024", 1 + at % 12, 1 + at * 5 % 12);
    assert!(told(&either, &[]).contains("Write columns.when=day-first, month-first or year-first"));
    assert!(told(&either, &[("when", Kind::DayFirst)]).starts_with("split by when (train 2024-01-01"));
    let words = told(&|at| format!("wave {}", at % 7), &[]);
    assert!(
        words.contains("cannot be ordered by when: \"wave 0\" is neither a number nor a date"),
        "{words}"
    );
    let gap = told(&|at| if at == 7 { String::new() } else { date("ISO", at) }, &[]);
    assert!(
        gap.contains("line 9, column when: \"\" is no time by which the rows could be ordered"),
        "{gap}"
    );
}

#[test]
fn dates_are_inputs_with_the_parts_that_can_be_learnt() {
    let parts = |rows: usize, cell: &dyn Fn(usize) -> String| {
        let row = |at: usize| format!("{},{},{}", cell(at), at % 9, at * 7 % 50);
        let table = read(rows, "when,x,y", row, &options("y")).unwrap();
        let of = |column: &Column| match column.format {
            Format::Dates(_, part) => Some(part),
            _ => None,
        };
        (
            table.schema.columns.iter().filter_map(of).collect::<Vec<_>>(),
            table.describe(),
        )
    };
    for form in FORMS {
        let (found, told) = parts(200, &|at| date(form, at));
        assert_eq!(found, [DatePart::Days, DatePart::Weekday], "{form}: {told}");
        assert!(told.contains("date      when (2023-11-20 to 2024-06-0"), "{told}");
        let (found, _) = parts(200, &|at| date(form, at * 89 % 1000));
        assert_eq!(
            found,
            [DatePart::Days, DatePart::Year, DatePart::Month, DatePart::Weekday],
            "{form}"
        );
    }
    let (found, _) = parts(200, &|at| {
        format!("{}T{:02}:15:00Z", date("ISO", at % 60), at % 24)
    });
    assert_eq!(found, [DatePart::Days, DatePart::Weekday, DatePart::Hour]);
    let (found, told) = parts(60, &|at| {
        format!("{:02}/{:02}/2024", 1 + at % 12, 1 + at * 5 % 12)
    });
    assert!(
        found.is_empty() && told.contains("dates whose day, month and year cannot be told apart"),
        "{told}"
    );
}

#[test]
fn spellings_of_a_target_are_one_class() {
    let row = |at: usize| format!("{},{}", at % 9, ["no", "NO", "yes", "Yes", "yes"][at % 5]);
    let table = read(60, "x,y", row, &options("y")).unwrap();
    let Target::Class {
        classes,
        counts,
        positive,
        ..
    } = &table.schema.target
    else {
        panic!("classes");
    };
    assert_eq!(
        (classes.as_slice(), counts.iter().sum::<u64>()),
        (["NO".to_owned(), "yes".to_owned()].as_slice(), 48)
    );
    assert_eq!(*positive, 1);
}

#[test]
fn a_skewed_positive_number_is_learnt_as_its_logarithm() {
    let log = |value: &dyn Fn(f64) -> f64, log: Log| {
        let row = |at: usize| format!("{},{}", at % 9, value((at * 37 % 100) as f64 / 25.0 - 2.0));
        let options = Options { log, ..options("y") };
        let table = read(200, "x,y", row, &options).map_err(|error| error.to_string())?;
        let target = &table.schema.target;
        let round_trip = target.natural(target.scaled(5.0, table.cells(0)), table.cells(0));
        assert!((round_trip - 5.0).abs() < 1e-4, "{round_trip}");
        Ok::<bool, String>(target.is_log())
    };
    let lognormal = |x: f64| (5.0 * x).exp();
    assert_eq!(log(&lognormal, Log::Auto), Ok(true));
    assert_eq!(log(&lognormal, Log::Off), Ok(false));
    assert_eq!(log(&|x| x + 5.0, Log::Auto), Ok(false));
    assert_eq!(log(&|x| x + 5.0, Log::On), Ok(true));
    assert!(log(&|x| x, Log::On).unwrap_err().contains("leave log=on out"));
    assert_eq!(log(&|x| lognormal(x) - 1.0, Log::Auto), Ok(false));
}

#[test]
fn rows_may_have_weights_and_no_negative_ones() {
    let by = Options {
        weight: "w".into(),
        ..options("y")
    };
    let row = |at: usize| format!("{},{},{}", at % 9, at % 3, at * 7 % 50);
    let table = read(60, "x,w,y", row, &by).unwrap();
    assert_eq!([0, 1, 2].map(|row| table.weight(row)), [0.0, 1.0, 2.0]);
    assert!(
        table.describe().contains("ignored   w (it weighs the rows)"),
        "{}",
        table.describe()
    );
    let row = |at: usize| {
        format!(
            "{},{},{}",
            at % 9,
            if at == 4 { "-1" } else { "1.5" },
            at * 7 % 50
        )
    };
    let told = read(60, "x,w,y", row, &by).unwrap_err().to_string();
    assert!(
        told.contains("line 6, column w: \"-1\" is no weight: give a number of at least 0"),
        "{told}"
    );
    // In a file with decimal commas this is one and a half.
    let row = |at: usize| format!("{};{},500;{}", at % 9, at % 3, at * 7 % 50);
    let table = read(60, "x;w;y", row, &by).unwrap();
    assert_eq!([0, 1, 2].map(|row| table.weight(row)), [0.5, 1.5, 2.5]);
}

#[test]
fn a_copy_of_three_classes_is_pointed_out_and_ten_rows_say_nothing() {
    let leaks = |rows: usize, row: &dyn Fn(usize) -> String| {
        let table = read(rows, "a,copy,y", row, &options("y")).unwrap();
        table.leaks().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let class = |at: usize| ["a", "b", "c"][at * at % 7 % 3];
    assert_eq!(
        leaks(90, &|at| format!(
            "{},{},{}",
            at % 11,
            at * at % 7 % 3 + 1,
            class(at)
        )),
        ["copy"]
    );
    assert_eq!(
        leaks(90, &|at| format!(
            "{},k{},{}",
            at % 11,
            at * at % 7 % 3,
            class(at)
        )),
        ["copy"]
    );
    // Each class has a range.
    let range = |at: usize| format!("{},{}.{at},{}", at % 11, 100 * (at * at % 7 % 3), class(at));
    assert_eq!(leaks(90, &range), ["copy"]);
    assert!(leaks(90, &|at| format!("{},{},{}", at % 11, at % 10, class(at))).is_empty());
    let few = |at: usize| format!("{},{},{}", at % 5, at, ["no", "yes"][usize::from(at >= 5)]);
    assert!(leaks(12, &few).is_empty());
}

#[test]
fn a_number_that_rises_with_a_date_is_learnt_without_the_line() {
    let row = |rise: f64| {
        move |at: usize| {
            format!(
                "{},{},{}",
                date("ISO", at),
                at % 9,
                rise * at as f64 + (at * 7 % 50) as f64
            )
        }
    };
    let table = read(300, "when,x,y", row(0.5), &options("y")).unwrap();
    let Target::Number {
        learnt:
            Some(Learnt {
                log: false,
                trend: Some(trend),
                deviation,
                ..
            }),
        ..
    } = &table.schema.target
    else {
        panic!("{:?}", table.schema.target);
    };
    assert!(
        (trend.slope - 0.5).abs() < 0.02 && (*deviation - 14.4).abs() < 1.0,
        "{trend:?} {deviation}"
    );
    assert!(
        table
            .describe()
            .contains("predicting y (a number: squared error; a line by when is added)")
    );
    // The same output means more, the later the row.
    let natural = |row: usize| table.schema.target.natural(0.0, table.cells(row));
    assert!((natural(299) - natural(0) - 0.5 * 299.0).abs() < 6.0);
    let level = read(300, "when,x,y", row(0.0), &options("y")).unwrap();
    assert!(matches!(level.schema.target, Target::Number { learnt: None, .. }));
}
