//! Tables as a whole: guesses, faults, splits, schemas.

mod doubts;
mod forms;

use super::*;
use std::collections::HashSet;

fn options(target: &str) -> Options {
    Options {
        target: target.into(),
        ..Options::default()
    }
}

fn csv(rows: usize) -> String {
    let mut text = String::from("id,size,town,note,price\n");
    for at in 0..rows {
        let town = ["Bern", "Bonn", "Basel"][at * 7 % 3];
        let size = 40 + at * 37 % 60;
        text += &format!("{at},{size}.5,{town},text {at},{}\n", size * 3 + at % 5 * 10);
    }
    text
}

#[test]
fn everything_is_guessed_and_told() {
    let text = csv(100).replace("\n2,54.5,", "\n2,,");
    let table = Table::read("houses.csv", text.as_bytes(), &options("price")).unwrap();
    assert_eq!(
        table.describe(),
        "houses.csv: 100 rows, 5 columns; predicting price (a number: squared error)\n  number    size (1 missing)\n  \
         category  town (3)\n  ignored   id (a different value in every row, such as \"0\"), note (100 different texts, such as \
         \"text 0\")\nsplit by row: 80 train, 10 validation, 10 test"
    );
    assert_eq!(table.len(), 100);
    assert_eq!(table.target(0), 120.0);
    let class = Table::read("houses.csv", text.as_bytes(), &options("town")).unwrap();
    assert!(class.describe().contains("predicting town (3 classes)"));
}

#[test]
fn all_faults_are_told_at_once_and_skipping_counts_exactly_the_rest() {
    let mut lines: Vec<String> = csv(60).lines().map(str::to_owned).collect();
    lines[10] = "9,45.5,Bern,text".into();
    lines[20] = lines[20].replace(".5,", " m2,");
    lines[30] = "29,45.5,Bern,text 29,".into();
    let text = lines.join("\r\n");
    let told = Table::read("houses.csv", text.as_bytes(), &options("price"))
        .unwrap_err()
        .to_string();
    let size = &lines[20].split(',').nth(1).unwrap();
    assert_eq!(
        told,
        format!(
            "houses.csv: 3 of 60 rows cannot be used:\n  line 11: 4 fields where the header has 5\n  line 21, column size: \
             \"{size}\" is not a number (58 other values are)\n  line 31: the target price is empty\nFix them, or continue \
             without them: bad_rows=skip"
        )
    );
    let skip = Options {
        bad_rows: BadRows::Skip,
        ..options("price")
    };
    let table = Table::read("houses.csv", text.as_bytes(), &skip).unwrap();
    assert_eq!((table.len(), table.skipped.len()), (57, 3));
    assert!(
        table.describe().ends_with(
            "skipped 3 rows:\n  line 11: 4 fields where the header has 5\n  line 21, column \
         size: \"77 m2\" is not a number (58 other values are)\n  line 31: the target price is empty"
                .replace("77 m2", size)
                .as_str()
        )
    );
    // Two faults of one row are one row.
    let two = text.replace("29,45.5,Bern,text 29,\r", "29,4x,Bern,text 29,\r");
    let table = Table::read("houses.csv", two.as_bytes(), &skip).unwrap();
    assert!(
        table.describe().contains("skipped 3 rows:"),
        "{}",
        table.describe()
    );
    // As if they had never been there.
    let good: Vec<&str> = text
        .split("\r\n")
        .enumerate()
        .filter(|(at, _)| ![10, 20, 30].contains(at))
        .map(|(_, l)| l)
        .collect();
    let without = Table::read("houses.csv", good.join("\n").as_bytes(), &options("price")).unwrap();
    assert_eq!(
        (&without.schema.columns, &without.rows),
        (&table.schema.columns, &table.rows)
    );
    assert_eq!(without.schema.target, table.schema.target);
    assert_eq!(identity(&without), identity(&table));
}

fn identity(table: &Table) -> Vec<u8> {
    let mut all = Vec::new();
    table.identity(|bytes| all.extend_from_slice(bytes));
    all
}

#[test]
fn many_faults_are_counted_and_not_all_listed() {
    let text = csv(90).replace("Bern,text", "Bern");
    let told = Table::read("t.csv", text.as_bytes(), &options("price"))
        .unwrap_err()
        .to_string();
    let faults = told.lines().filter(|line| line.starts_with("  line ")).count();
    assert!(
        faults == 20 && told.contains("\n  and 10 more faults\n"),
        "{told}"
    );
    // A thousand are kept.
    let text = csv(6_000).replace("Bern,text", "Bern");
    let Err(TableError::Rows(faults)) = Table::read("t.csv", text.as_bytes(), &options("price")) else {
        panic!("no faults in rows");
    };
    assert_eq!((faults.list.len(), faults.list.iter().count()), (2_000, 1_000));
    let told = faults.to_string();
    assert!(
        told.contains("2,000 of 6,000 rows cannot") && told.contains("and 1,980 more faults"),
        "{told}"
    );
}

#[test]
fn the_schema_is_the_same_text_after_a_round_trip_and_sees_training_rows_only() {
    let table = Table::read("t.csv", csv(200).as_bytes(), &options("price")).unwrap();
    let text = serde_json::to_string(&table.schema).unwrap();
    let back: Schema = serde_json::from_str(&text).unwrap();
    assert_eq!(back, table.schema);
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
    // Other test rows leave it as it is; other training rows do not.
    let changed = |row: usize| {
        let mut lines: Vec<String> = csv(200).lines().map(str::to_owned).collect();
        lines[row + 1] = format!("{row},5000,Bern,text {row},9999");
        Table::read("t.csv", lines.join("\n").as_bytes(), &options("price"))
            .unwrap()
            .schema
    };
    assert_eq!(changed(table.rows.test[0]), table.schema);
    assert_ne!(changed(table.rows.train[0]), table.schema);
}

#[test]
fn a_split_column_is_found_and_groups_and_time_are_kept() {
    let with = |of: &dyn Fn(usize) -> String| {
        let mut lines: Vec<String> = csv(100).lines().map(str::to_owned).collect();
        lines.iter_mut().enumerate().for_each(|(at, line)| {
            *line += &match at {
                0 => ",extra".to_owned(),
                row => format!(",{}", of(row - 1)),
            };
        });
        lines.join("\n")
    };
    let text = with(&|row| {
        if row % 4 == 0 {
            "test".into()
        } else {
            "train".into()
        }
    });
    let table = Table::read("t.csv", text.as_bytes(), &options("price")).unwrap();
    assert_eq!(table.rows.test, (0..100).step_by(4).collect::<Vec<_>>());
    assert_eq!((table.rows.train.len(), table.rows.validation.len()), (67, 8));
    assert!(table.schema.ignored.iter().any(|column| column.name == "extra"));
    let mistyped = text.replacen(",test", ",tset", 1);
    let by = Options {
        split_column: "extra".into(),
        ..options("price")
    };
    let error = Table::read("t.csv", mistyped.as_bytes(), &by)
        .unwrap_err()
        .to_string();
    let told = "line 2, column extra: \"tset\" is none of train, validation and test";
    assert!(error.contains(told) && error.contains("1 of 100 rows"), "{error}");
    let skipping = Options {
        bad_rows: BadRows::Skip,
        ..by
    };
    let table = Table::read("t.csv", mistyped.as_bytes(), &skipping).unwrap();
    assert_eq!((table.len(), table.rows.test.len()), (99, 24));
    let table = Table::read("t.csv", text.as_bytes(), &options("extra")).unwrap();
    assert!(
        table.rows.test.len() < 20,
        "what is to be predicted divides nothing"
    );

    let text = with(&|row| format!("customer {}", row % 20));
    let by = Options {
        split_by: "extra".into(),
        ..options("price")
    };
    let table = Table::read("t.csv", text.as_bytes(), &by).unwrap();
    let groups = |rows: &[usize]| rows.iter().map(|row| row % 20).collect::<HashSet<_>>();
    assert_eq!((table.rows.test.len(), table.rows.validation.len()), (10, 10));
    assert!(groups(&table.rows.test).is_disjoint(&groups(&table.rows.train)));

    let text = with(&|row| format!("2026-01-{:02}", 1 + row * 7 % 28));
    let by = Options {
        split_time: "extra".into(),
        ..options("price")
    };
    let table = Table::read("t.csv", text.as_bytes(), &by).unwrap();
    let days = |rows: &[usize]| rows.iter().map(|row| row * 7 % 28).collect::<Vec<_>>();
    assert!(days(&table.rows.train).iter().max() <= days(&table.rows.test).iter().min());
}

#[test]
fn options_that_do_not_fit_are_refused_with_advice() {
    let kinds = |name: &str, kind| Options {
        columns: [(name.to_owned(), kind)].into(),
        ..options("price")
    };
    for (options, told) in [
        (
            options(""),
            "needs a column to predict: target=NAME. Its columns: id, size, town, note, price",
        ),
        (options("cost"), "has no column \"cost\" (target)"),
        (
            kinds("colour", Kind::Number),
            "has no column \"colour\" (columns.colour)",
        ),
        (options("note"), "columns.note=number"),
        (
            Options {
                split_column: "a".into(),
                split_by: "b".into(),
                ..options("price")
            },
            "in one way only",
        ),
        (options("pric"), "Do you mean \"price\"?"),
        (
            kinds("price", Kind::Ignore),
            "cannot ignore price, which is to be predicted",
        ),
        (kinds("", Kind::Number), "has no column \"\" (columns.)"),
        (
            Options {
                split_by: "town".into(),
                ..options("town")
            },
            "cannot be divided by town, which is to be predicted",
        ),
        (
            Options {
                positive: "Rome".into(),
                ..options("town")
            },
            "choose one of Basel, Bern, Bonn",
        ),
    ] {
        let text = csv(1200);
        let found = Table::read("t.csv", text.as_bytes(), &options)
            .unwrap_err()
            .to_string();
        assert!(found.contains(told), "{found}");
    }
    let row = Table::read("t.csv", b"5.1,3.5,no\n4.9,3,yes\n", &options("price"));
    let told = row.unwrap_err().to_string();
    assert!(
        told.ends_with("The first line must name the columns; this one looks like a row"),
        "{told}"
    );
    let case = Table::read("t.csv", csv(60).as_bytes(), &options("Price"))
        .unwrap_err()
        .to_string();
    assert!(case.ends_with("Do you mean \"price\"?"), "{case}");
    let few = Table::read("t.csv", csv(9).as_bytes(), &options("price"))
        .unwrap_err()
        .to_string();
    assert!(few.contains("has 9 usable rows"), "{few}");
    let asked = Table::read("t.csv", csv(60).as_bytes(), &kinds("id", Kind::Number)).unwrap();
    assert!(asked.schema.columns.iter().any(|column| column.name == "id"));
}

#[test]
fn balanced_weights_count_all_classes_the_same_and_rows_one_on_average() {
    let target = Target::Class {
        any_case: false,
        name: "t".into(),
        classes: vec!["a".into(), "b".into()],
        counts: vec![90, 10],
        positive: 1,
    };
    let weights = target.balanced();
    assert!((90.0 * weights[0] - 10.0 * weights[1]).abs() < 1e-4);
    assert!((90.0 * weights[0] + 10.0 * weights[1] - 100.0).abs() < 1e-4);
}

#[test]
fn a_column_that_tells_the_answer_alone_is_pointed_out() {
    let mut text = String::from("age,code,cancelled,left\n");
    for at in 0..100 {
        let left = at % 3 == 0;
        let code = if left { ["a", "c"][at % 2] } else { "b" };
        let cancelled = if left { 300 + at } else { 0 };
        text += &format!(
            "{},{code},{cancelled},{}\n",
            at * 7 % 30,
            if left { "yes" } else { "no" }
        );
    }
    let table = Table::read("t.csv", text.as_bytes(), &options("left")).unwrap();
    assert_eq!(table.leaks(), ["code", "cancelled"]);
    assert!(
        table
            .describe()
            .contains("warning: the answer can be told from code, cancelled alone")
    );
    let other = Table::read("t.csv", text.replace("300", "0").as_bytes(), &options("code")).unwrap();
    assert!(other.leaks().is_empty(), "{:?}", other.leaks());
}

/// The error for a table of these columns, or else its description.
fn told_of(header: &str, rows: usize, row: impl Fn(usize) -> String) -> String {
    let text: String = std::iter::once(header.to_owned())
        .chain((0..rows).map(row))
        .map(|line| line + "\n")
        .collect();
    match Table::read("t.csv", text.as_bytes(), &options("y")) {
        Ok(table) => table.describe(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_table_that_cannot_be_learnt_from_is_told_what_it_lacks() {
    let yes = |at: usize| ["no", "yes"][at % 2];
    for (told, parts) in [
        (
            told_of("a,y", 0, |_| String::new()),
            &["has no usable rows below its first line", "at least 10"][..],
        ),
        (
            told_of("a,y", 1, |_| "1,x".into()),
            &["has 1 usable row below its first line"],
        ),
        (
            told_of("y", 60, |at| yes(at).into()),
            &["has only the column y, which is to be predicted"],
        ),
        (
            told_of("a,b,c,y", 60, |at| format!(",{},4,{}", 59 - at, yes(at))),
            &[
                "has no column to predict y from",
                "a (every cell is missing)",
                "b (a different value in every row, such as \"59\")",
                "c (the same value in every row, such as \"4\")",
                "columns.NAME=number",
            ],
        ),
        (
            told_of("a;b;y", 60, |at| format!("{};K{:02};{}", at % 7, at, yes(at))),
            &["b (60 different texts, such as \"K00\")"],
        ),
        (
            told_of("a,y", 60, |at| format!("{},yes", at % 7)),
            &["\"yes\" as the y of every usable row"],
        ),
        (
            told_of("a,y", 60, |at| format!("{},{}", at % 7, ["5", "5.0"][at % 2])),
            &["as the y of every usable row"],
        ),
        (
            told_of("a,y", 60, |at| format!("{},2026-01-{at:02}", at % 7)),
            &[
                "has 60 different values of the target y in 60 rows, too many for classes",
                "\"2026-01-00\" is not a number",
            ],
        ),
        (
            told_of("a,y", 60, |at| {
                format!("{},{}", at % 7, 10_u64.pow(18) + at as u64)
            }),
            &["\"1000000000000000000\" is too large a number: at most 1e15"],
        ),
        (
            told_of("a,y", 60, |at| format!("{},", at % 7)),
            &[
                "60 of 60 rows cannot be used",
                "Fix them: no row is left without them",
            ],
        ),
        (
            told_of("a,y", 60, |at| {
                format!(
                    "{},{}",
                    if at == 9 {
                        "1e17".into()
                    } else {
                        (at % 7).to_string()
                    },
                    yes(at)
                )
            }),
            &[
                "line 11, column a: \"1e17\" is too large a number: at most 1e15, so write it in a larger unit (59 other",
            ],
        ),
    ] {
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}

#[test]
fn many_columns_and_many_classes_are_counted_and_divided() {
    let names: Vec<String> = (0..3000).map(|at| format!("c{at}")).collect();
    let row = |at: usize| {
        (0..3000)
            .map(|column| ((column % 10 + 1) * (at + 3) % 11).to_string() + ",")
            .collect::<String>()
            + ["no", "yes"][at % 2]
    };
    let told = told_of(&(names.join(",") + ",y"), 30, row);
    assert!(
        told.contains("t.csv: 30 rows, 3,001 columns; predicting y"),
        "{told:.200}"
    );
    assert!(
        told.contains(", c39 and 2,960 more\nsplit by row") && told.len() < 2_000,
        "{told:.400}"
    );
    let told = told_of("a,y", 2_000, |at| format!("{},c{}", at % 97, at % 500));
    assert!(
        told.contains("predicting y (500 classes)")
            && told.ends_with("1,600 train, 200 validation, 200 test"),
        "{told}"
    );
}

#[test]
fn a_column_that_tells_a_number_alone_is_pointed_out() {
    let area = |at: usize| at * at % 97;
    let table = |row: &dyn Fn(usize) -> String| told_of("a,b,y", 200, row);
    let warning =
        "the answer can be told from b alone. If it is not known beforehand, ignore it: columns.b=ignore";
    for told in [
        table(&|at| format!("{},{},{}", at % 11, 3 * area(at) + 5, area(at))),
        table(&|at| format!("{},town {},{}.5", at % 11, at % 9, at % 9 * 5 % 7 + 100)),
    ] {
        assert!(told.contains(warning), "{told}");
    }
    for told in [
        table(&|at| format!("{},{},{}", at % 11, 3 * area(at) + at % 11, area(at))),
        // It is there in half of the rows only.
        table(&|at| {
            format!(
                "{},{},{}",
                at % 11,
                if at % 2 == 0 {
                    area(at).to_string()
                } else {
                    String::new()
                },
                area(at)
            )
        }),
    ] {
        assert!(!told.contains("warning"), "{told}");
    }
}
