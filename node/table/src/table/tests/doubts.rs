//! Columns that may not be what they look like: what is read by itself, and what is told.

use super::super::*;
use super::options;
use serde_json::json;

/// A table of a column with this name, with a price to predict.
fn table(name: &str, cell: impl Fn(usize) -> String, options: &Options) -> Result<Table, TableError> {
    let rows: String = (0..300)
        .map(|at| format!("\"{}\",{},{}\n", cell(at), at * 13 % 29, at * 37 % 101))
        .collect();
    Table::read("t.csv", format!("{name},u,y\n{rows}").as_bytes(), options)
}

fn told(name: &str, cell: impl Fn(usize) -> String) -> String {
    table(name, cell, &options("y")).unwrap().describe()
}

/// The year, month and day of a row.
fn day(at: usize) -> (usize, usize, usize) {
    (2020 + at / 100, 1 + at / 28 % 12, 1 + at % 28)
}

type Cell = fn(usize) -> String;

#[test]
fn dates_as_numbers_are_dates_where_they_can_be_nothing_else() {
    let forms: [(&str, Cell); 9] = [
        ("YYYYMMDD", |at| {
            let (y, m, d) = day(at);
            format!("{y}{m:02}{d:02}")
        }),
        ("DDMMYYYY", |at| {
            let (y, m, d) = day(at);
            format!("{d:02}{m:02}{y}")
        }),
        ("DMMYYYY", |at| {
            let (y, m, d) = day(at);
            format!("{d}{m:02}{y}")
        }),
        ("MDDYYYY", |at| {
            let (y, m, d) = day(at);
            format!("{m}{d:02}{y}")
        }),
        ("YYYYMMDDHHMM", |at| {
            let (y, m, d) = day(at);
            format!("{y}{m:02}{d:02}{:02}30", at % 24)
        }),
        ("YYYYMM", |at| {
            let (y, m, _) = day(at);
            format!("{y}{m:02}")
        }),
        ("MYYYY", |at| {
            let (y, m, _) = day(at);
            format!("{m}{y}")
        }),
        ("YYYY.M", |at| {
            let (y, m, _) = day(at);
            format!("{y}.{m}")
        }),
        ("MM.YYYY", |at| {
            let (y, m, _) = day(at);
            format!("{m:02}.{y}")
        }),
    ];
    for (form, cell) in forms {
        let by_time = Options {
            split_time: "x".into(),
            ..options("y")
        };
        let table = table("x", cell, &by_time).unwrap();
        let describe = table.describe();
        assert!(describe.contains("date      x (2020-"), "{form}: {describe}");
        assert!(table.divided.contains("test 2022-"), "{form}: {}", table.divided);
    }
}

#[test]
fn numbers_that_may_be_dates_are_told_and_divide_nothing() {
    // Whether 2020.1 is January or October.
    let months: Cell = |at| {
        format!(
            "{}.{}",
            2020 + at / 100,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12][at % 11]
        )
    };
    let short: Cell = |at| {
        let (y, m, d) = day(at);
        format!("{d:02}{m:02}{}", y % 100)
    };
    // One month of each year: numbers in a row.
    let few: Cell = |at| format!("1{}", 2020 + at % 3);
    for (cell, says) in [
        (months, "2020.1 could be January"),
        (short, "a year of two digits"),
        (few, "columns.date=date"),
    ] {
        let describe = told("date", cell);
        assert!(
            describe.contains("number    date, u") && describe.contains(says),
            "{describe}"
        );
        let by_time = Options {
            split_time: "date".into(),
            ..options("y")
        };
        let refused = table("date", cell, &by_time).unwrap_err().to_string();
        assert!(
            refused.contains("cannot be ordered by date: its numbers may be"),
            "{refused}"
        );
    }
    let date = |cell: Cell| {
        let mut asked = options("y");
        asked.columns.insert("date".into(), Kind::Date);
        table("date", cell, &asked).map(|table| table.describe())
    };
    assert!(
        date(few)
            .unwrap()
            .contains("date      date (2020-01-01 to 2022-01-01")
    );
    assert!(
        date(months)
            .unwrap_err()
            .to_string()
            .contains("write them as 2024-12-31")
    );
    // Plain numbers stay so, without a word.
    let plain: [Cell; 4] = [
        |at| format!("{}", 12_000 + at % 90),
        |at| format!("{}.{}", 1990 + at % 40, at % 7),
        |at| format!("{}", 150_000 + at * 37),
        |at| format!("{}", 33_000 + at * 31),
    ];
    for cell in plain {
        let describe = told("price", cell);
        assert!(
            describe.contains("number    price, u") && !describe.contains("warning"),
            "{describe}"
        );
    }
}

#[test]
fn counted_times_are_told_with_the_setting_that_reads_them() {
    let day = |at: usize| 18_262 + (at * 7 % 1400) as u64;
    for (name, cell, kind, says) in [
        (
            "ts",
            Box::new(move |at| format!("{}", day(at) * 86_400 + 61)) as Box<dyn Fn(usize) -> String>,
            Kind::Unix,
            "seconds since 1970",
        ),
        (
            "x",
            Box::new(move |at| format!("{}", day(at) * 86_400_000)),
            Kind::Unix,
            "milliseconds since 1970",
        ),
        (
            "created_at",
            Box::new(move |at| format!("{}000000000", day(at) * 86_400)),
            Kind::Unix,
            "nanoseconds since 1970",
        ),
        (
            "Datum",
            Box::new(move |at| format!("{}", day(at) + 25_569)),
            Kind::Excel,
            "dates of a spreadsheet",
        ),
    ] {
        let describe = told(name, &cell);
        assert!(
            describe.contains(&format!("may be {says}, 2020-01-01 to 2023-10-")),
            "{describe}"
        );
        let mut asked = options("y");
        asked.columns.insert(name.into(), kind);
        asked.split_time = name.into();
        let table = table(name, &cell, &asked).unwrap();
        let describe = table.describe();
        assert!(
            describe.contains(&format!("date      {name} (2020-01-01 to")) && !describe.contains("warning"),
            "{describe}"
        );
        assert!(table.divided.contains("to 2023-10-"), "{}", table.divided);
    }
}

#[test]
fn numbers_with_one_unit_are_numbers_and_different_units_are_told() {
    for (unit, shown) in [
        (" kg", "kg"),
        ("cm", "cm"),
        (" GB", "GB"),
        ("\u{B0}C", "\u{B0}C"),
        (" km/h", "km/h"),
        (" years", "year"),
    ] {
        let describe = told("x", |at| format!("{}.5{unit}", at * 7 % 9));
        assert!(
            describe.contains(&format!("number    x (in {shown}), u")),
            "{describe}"
        );
    }
    let describe = told("x", |at| format!("{} {}", at % 9, ["GB", "MB"][at % 2]));
    assert!(
        describe.contains("different units (150 GB, 150 MB)") && describe.contains("category  x"),
        "{describe}"
    );
    let describe = told("x", |at| {
        format!("{}{}", at % 9, if at % 10 == 3 { "" } else { " kg" })
    });
    assert!(
        describe.contains("30 of its numbers have no unit and are read as kg"),
        "{describe}"
    );
    let describe = told("x", |at| {
        format!("{}{}", at % 9, if at % 10 == 3 { "" } else { "k" })
    });
    assert!(
        describe.contains("different units (270 k, 30 without)"),
        "{describe}"
    );
    let describe = told("x", |at| format!("{}:{:02}", at % 24, at % 60));
    assert!(
        describe.contains("no value of x occurs often enough to learn from"),
        "{describe}"
    );
    let row = |at: usize| format!("{},{} {}\n", at % 17, at % 9, ["GB", "MB"][at % 2]);
    let file = "a,y\n".to_owned() + &(0..300).map(row).collect::<String>();
    let table = Table::read("t.csv", file.as_bytes(), &options("y")).unwrap();
    assert!(
        table
            .describe()
            .contains("column y: its numbers have different units"),
        "{}",
        table.describe()
    );
    // Names stay names.
    for cell in [
        |at: usize| format!("A{}", at % 5),
        |at| format!("{}{}", at % 4 + 1, ["st", "nd", "rd", "th"][at % 4]),
    ] {
        let describe = told("x", cell);
        assert!(
            describe.contains("category  x") && !describe.contains("warning"),
            "{describe}"
        );
    }
}

#[test]
fn words_that_differ_in_case_are_told_and_are_one_if_asked() {
    let cell: Cell = |at| ["Paris", "paris", "Rome", "PARIS", " Paris", "Rome "][at % 6].into();
    let describe = told("city", cell);
    assert!(
        describe.contains("category  city (4)")
            && describe.contains(
                "column city: \"PARIS\" (50), \"Paris\" (100), \"paris\" (50) differ only in the case"
            ),
        "{describe}"
    );
    let mut asked = options("y");
    asked.columns.insert("city".into(), Kind::AnyCase);
    let any = table("city", cell, &asked).unwrap();
    let describe = any.describe();
    assert!(
        describe.contains("category  city (2)") && !describe.contains("warning"),
        "{describe}"
    );
    assert_eq!(
        (any.cells(0).values[0], any.cells(3).values[0]),
        (any.cells(1).values[0], any.cells(4).values[0])
    );
    let kept: Schema = serde_json::from_str(&serde_json::to_string(&any.schema).unwrap()).unwrap();
    let (reader, mut cells) = (Reader::of(&kept), Cells::default());
    assert_eq!(reader.read(0, "pArIs", &mut cells), Found::Known);

    let row = |at: usize| format!("{},{}\n", at % 17, ["Spam", "spam", "Ham"][at % 3]);
    let file = "a,y\n".to_owned() + &(0..90).map(row).collect::<String>();
    let classes = |options: &Options| Table::read("t.csv", file.as_bytes(), options).unwrap();
    assert!(
        classes(&options("y"))
            .describe()
            .contains("\"Spam\" (30), \"spam\" (30) differ")
    );
    asked.columns = [("y".to_owned(), Kind::AnyCase)].into();
    let two = classes(&asked);
    assert!(matches!(&two.schema.target, Target::Class { classes, .. } if *classes == ["Ham", "Spam"]));
}

#[test]
fn a_column_of_zeros_and_ones_takes_true_and_false_and_the_other_way_round() {
    for (cells, others) in [(["0", "1"], ["false", "True"]), (["False", "True"], ["0", "1"])] {
        let table = table("x", |at| cells[at % 2].into(), &options("y")).unwrap();
        let reader = Reader::of(&table.schema);
        for (at, other) in others.iter().enumerate() {
            let mut read = Cells::default();
            assert_eq!(reader.read(0, other, &mut read), Found::Known, "{other}");
            assert_eq!(reader.read_json(0, &json!(at == 1), &mut read), Found::Known);
            assert_eq!(reader.read_json(0, &json!(at), &mut read), Found::Known);
            let row = |row: usize| read.row(row, 1).values[0];
            assert_eq!(
                [row(0), row(1), row(2)],
                [table.cells(at).values[0]; 3],
                "{other}"
            );
        }
    }
    let mixed = told("x", |at| ["0", "1", "true", "FALSE"][at % 4].into());
    assert!(
        mixed.contains("category  x (2)") && !mixed.contains("warning"),
        "{mixed}"
    );
    let number = table("x", |at| format!("{}", at % 3), &options("y")).unwrap();
    assert_eq!(
        Reader::of(&number.schema).read(0, "true", &mut Cells::default()),
        Found::Wrong
    );
}

#[test]
fn a_month_as_a_number_of_json_is_refused() {
    let table = table(
        "x",
        |at| {
            let (y, m, _) = day(at);
            format!("{y}.{m}")
        },
        &options("y"),
    )
    .unwrap();
    let reader = Reader::of(&table.schema);
    assert_eq!(
        reader.read_json(0, &json!("2020.10"), &mut Cells::default()),
        Found::Known
    );
    assert_eq!(
        reader.read_json(0, &json!(2020.1), &mut Cells::default()),
        Found::Wrong
    );
}

#[test]
fn a_date_as_a_whole_number_of_json_is_read_whatever_its_type() {
    let date = |at| {
        let (y, m, d) = day(at);
        format!("{y}{m:02}{d:02}")
    };
    let table = table("x", date, &options("y")).unwrap();
    let reader = Reader::of(&table.schema);
    // Other programs write whole numbers so where a column has gaps.
    for value in [json!("20240305"), json!(20240305), json!(20240305.0)] {
        let found = reader.read_json(0, &value, &mut Cells::default());
        assert_eq!(found, Found::Known, "{value}");
    }
}

#[test]
fn copies_of_rows_and_things_with_several_rows_are_told_where_rows_are_drawn() {
    let row = |at: usize| format!("{},{},{}\n", at * 7919 % 3001, at * 13 % 29, at * 37 % 101);
    let rows: String = (0..300).map(|at| row(at / 2)).collect();
    let read = |header: &str, rows: &str, options: &Options| {
        let table = Table::read("t.csv", format!("{header}\n{rows}").as_bytes(), options).unwrap();
        table.describe()
    };
    let describe = read("x,u,y", &rows, &options("y"));
    assert!(
        describe.contains("150 of the rows are copies of others"),
        "{describe}"
    );
    // The letters of some rows are those of others, in other fields.
    let cut: String = (0..20)
        .map(|at| match at {
            0 => "1,12\n".into(),
            1 => "11,2\n".into(),
            at => format!("{},{}\n", at + 20, at * at),
        })
        .collect();
    assert!(!read("x,y", &cut, &options("y")).contains("copies"));
    // Few values repeat by themselves.
    let few: String = (0..300)
        .map(|at| format!("{},{},{}\n", at % 3, at % 4, at % 5))
        .collect();
    assert!(!read("x,u,y", &few, &options("y")).contains("copies"));
    let things: String = (0..300)
        .map(|at| format!("{},{},{}\n", at % 40 * 7, at * 13 % 29, at * 37 % 101))
        .collect();
    let describe = read("customer_id,u,y", &things, &options("y"));
    assert!(describe.contains("write split_by=customer_id"), "{describe}");
    let kept = Options {
        split_by: "customer_id".into(),
        ..options("y")
    };
    assert!(!read("customer_id,u,y", &things, &kept).contains("warning"));
}

#[test]
fn marks_of_gaps_codes_names_of_rows_and_totals_are_told() {
    for (name, cell, says) in [
        (
            "x",
            (|at| format!("{}", if at % 9 == 0 { 9999 } else { at % 17 })) as Cell,
            "column x has 34 times 9999, far from its other",
        ),
        (
            "zip",
            |at| format!("{:05}", at * 37 % 900 + 100),
            "columns.zip=category",
        ),
        (
            "x",
            |at| match at % 9 {
                0 => "1900-01-01".into(),
                _ => format!("2024-{:02}-{:02}", 1 + at % 12, 1 + at % 28),
            },
            "column x has 34 times the date 1900-01-01",
        ),
        (
            "release",
            |at| format!("{}.{}", at % 3, at % 12),
            "has 1.1 and 1.10, which are one number",
        ),
        (
            "customer_id",
            |at| format!("{}", 100_000 + at * 7919),
            "columns.customer_id=ignore",
        ),
        (
            "x",
            |at| {
                if at == 299 {
                    format!("{}", 299 * 298 / 2)
                } else {
                    at.to_string()
                }
            },
            "line 301, looks like the total",
        ),
        (
            "x",
            |at| {
                if at == 299 {
                    "Total".into()
                } else {
                    format!("shop {}", at % 7)
                }
            },
            "line 301, looks like the total",
        ),
    ] {
        let describe = told(name, cell);
        assert!(describe.contains(says), "{describe}");
    }
    let describe = told("x", |at| format!("{}", (at * 37 % 101) * (at * 37 % 101) * 3));
    assert!(
        describe.contains("the answer can be told from x alone"),
        "{describe}"
    );
}
