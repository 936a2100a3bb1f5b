//! Predictions of new rows, and the choice of members.

use super::*;
use crate::network::Dense;
use crate::options::Options;
use crate::schema::ColumnKind;
use serde_json::json;

const FILE: &str = "size,town,sold\n";

fn table() -> Table {
    table_of(25)
}

/// Sizes below `sold` are not sold.
fn table_of(sold: usize) -> Table {
    let row = |at: usize| {
        format!(
            "{},{},{}\n",
            at % 50,
            ["Bern", "Bonn"][at % 2],
            if at % 50 >= sold { "yes" } else { "no" }
        )
    };
    let text = FILE.to_owned() + &(0..300).map(row).collect::<String>();
    let options = Options {
        target: "sold".into(),
        ..Options::default()
    };
    Table::read("t.csv", text.as_bytes(), &options).unwrap()
}

/// A linear member that says `yes` the more, the larger the size; `way` -1 says the opposite.
fn linear(table: &Table, way: f32) -> Member {
    let width = Features::of(&table.schema).without_bins();
    let mut weight = vec![0.0; 2 * width];
    // The size is the last input without bins.
    weight[2 * width - 1] = 8.0 * way;
    Member {
        inputs: width,
        around: Dense {
            weight,
            bias: vec![0.0; 2],
        },
        layers: Vec::new(),
    }
}

fn predictor(table: &Table) -> Predictor {
    Predictor::new(
        table.schema.clone(),
        Network {
            members: vec![linear(table, 1.0)],
        },
        vec![1.0],
        Decision::default(),
    )
}

#[test]
fn columns_may_be_in_another_order_more_and_with_unseen_values() {
    let predictor = predictor(&table());
    let plain = predictor
        .predict("a.csv", b"size,town\n40,Bern\n5,Bonn\n")
        .unwrap()
        .text;
    let lines: Vec<&str> = plain.lines().collect();
    assert_eq!(lines[0], "size,town,sold_predicted,sold_no,sold_yes");
    assert!(
        lines[1].starts_with("40,Bern,yes,0.") && lines[2].starts_with("5,Bonn,no,0.9"),
        "{plain}"
    );
    let other = predictor
        .predict("b.csv", b"note;town;size\r\n\"a;b\";Bern;40\r\nx;Bonn;5")
        .unwrap()
        .text;
    let answers = |text: &str, separator: char| -> Vec<String> {
        let last = |line: &str| {
            line.rsplitn(4, separator)
                .take(3)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        text.lines().skip(1).flat_map(last).collect()
    };
    assert_eq!(answers(&other, ';'), answers(&plain, ','));
    assert!(other.starts_with("note;town;size;sold_predicted") && other.contains("\n\"a;b\";Bern;40;yes"));
    // A town that was never seen, and a missing size.
    let unseen = predictor
        .predict("c.csv", b"size,town\n40,Rome\n,Bern\n")
        .unwrap()
        .text;
    assert_eq!(answers(&unseen, ',')[..3], answers(&plain, ',')[..3]);
}

#[test]
fn what_was_predicted_can_be_predicted_again() {
    let predictor = predictor(&table());
    let once = predictor.predict("a.csv", b"size,town\n40,Bern\n").unwrap().text;
    let twice = predictor.predict("b.csv", once.as_bytes()).unwrap().text;
    let header = "size,town,sold_predicted,sold_no,sold_yes,sold_predicted_2,sold_no_2,sold_yes_2\n";
    assert!(twice.starts_with(header), "{twice}");
    assert!(predictor.predict("c.csv", twice.as_bytes()).is_ok());
}

#[test]
fn missing_columns_and_bad_cells_are_told_all_at_once() {
    let predictor = predictor(&table());
    let told = predictor
        .predict("a.csv", b"colour,place\nred,x\n")
        .unwrap_err()
        .to_string();
    assert!(
        told.contains("lacks columns that the model reads: size, town. It has: colour, place"),
        "{told}"
    );
    let told = predictor
        .predict("a.csv", b"size,town\nbig,Bern\n1\n2,Bonn\nsmall,Bern\n")
        .unwrap_err()
        .to_string();
    for part in [
        "3 of 4 rows",
        "line 2, column size: \"big\"",
        "line 3: 1 field",
        "line 5, column size: \"small\"",
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn members_that_help_on_validation_rows_count_more() {
    let table = table();
    let members = vec![linear(&table, -1.0), linear(&table, 1.0)];
    let chosen = Predictor::chosen(&table, Network { members }, 2, &Options::default()).unwrap();
    assert!(chosen.weights()[1] > 0.95, "{:?}", chosen.weights());
    let sum: f64 = chosen.weights().iter().sum();
    assert!((sum - 1.0).abs() < 1e-12);
    let judged = chosen.judge(&table, &table.rows.test);
    assert!(judged.rows == 30 && judged.metrics[0].value > 0.9);
    assert_eq!(judged.constant[3].value, 0.5);
    let told = judged.describe("test", "rows", &table.schema.target);
    assert!(told.starts_with("test (30 rows): accuracy "), "{told}");
    assert!(
        told.contains("always the same answer auc 0.5000, accuracy 0.5"),
        "{told}"
    );
    let card = crate::card("t.csv", &table.schema, &judged, &[]);
    assert!(
        card.starts_with(
            "---\nlibrary_name: annulus\ntags:\n- tabular-classification\n---\n# sold from t.csv"
        ),
        "{card}"
    );
    assert!(
        card.contains("| size | a number, 0 to 49.00 | 0 |\n| town | one of 2 categories | 0 |"),
        "{card}"
    );
    assert!(
        card.contains("| accuracy | ") && card.contains("predicts the column sold: one of no, yes."),
        "{card}"
    );
    // Names come from the data.
    let mut schema = table.schema.clone();
    schema.columns[0].name = "<img src=x>|\u{1b}]0;P\u{7}\n".into();
    let card = crate::card("`t`.csv", &schema, &judged, &[]);
    assert!(
        card.contains("| \\<img src=x\\>\\|\u{fffd}\\]0;P\u{fffd}  | a number"),
        "{card}"
    );
    assert!(card.contains("# sold from \\`t\\`.csv\n"), "{card}");
}

#[test]
fn trials_join_the_usual_model_unless_they_are_clearly_worse() {
    let table = table_of(23);
    // All say the same of each row: 16 of the 30 validation rows are sold, which the second denies by a little.
    let constant = |yes: f32| {
        let mut member = linear(&table, 0.0);
        member.around.bias[1] = yes;
        member
    };
    let weights = |members: Vec<Member>| {
        let chosen = Predictor::chosen(&table, Network { members }, 1, &Options::default()).unwrap();
        chosen.weights().to_vec()
    };
    assert_eq!(weights(vec![constant(0.0), constant(-0.16)]), [0.5, 0.5]);
    assert_eq!(
        weights(vec![linear(&table, 1.0), linear(&table, -1.0)]),
        [1.0, 0.0]
    );
    assert_eq!(weights(vec![constant(0.0), constant(f32::NAN)]), [1.0, 0.0]);
    // The better third, each alike.
    let five = (1..5).map(|size| linear(&table, 0.2 * size as f32));
    let members: Vec<Member> = [constant(0.0)].into_iter().chain(five).collect();
    assert_eq!(weights(members), [0.5, 0.0, 0.0, 0.25, 0.25]);
}

/// As many plans, the last of which belong to trials.
fn plans(count: usize) -> Vec<crate::Plan> {
    let options = Options {
        trials: Some(4),
        ..Options::default()
    };
    let plans = crate::Plan::of(&options, &Features::of(&table().schema), 2).unwrap();
    plans[plans.len() - count..].to_vec()
}

#[test]
fn trials_are_ranked_and_bad_ones_count_nothing() {
    use crate::Leaderboard;
    let table = table();
    let mut diverged = linear(&table, 1.0);
    diverged.around.bias[0] = f32::NAN;
    let members = vec![
        linear(&table, 0.2),
        linear(&table, 0.2),
        diverged,
        linear(&table, -1.0),
        linear(&table, 1.0),
    ];
    let chosen = Predictor::chosen(&table, Network { members }, 2, &Options::default()).unwrap();
    let weights = chosen.weights().to_vec();
    assert_eq!(weights[2..], [0.0, 0.0, 0.5]);
    assert!(weights[0] > 0.0, "{weights:?}");
    assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    let answer = chosen.answer(table.cells(0));
    assert!(answer.iter().all(|part| part.is_finite()), "{answer:?}");

    let options = Options {
        target: "sold".into(),
        columns: [("the town".to_owned(), crate::Kind::Ignore)].into(),
        trials: Some(4),
        ..Options::default()
    };
    let plans = plans(5);
    let trials = chosen.trials(&table, &plans, 2);
    let numbers: Vec<usize> = trials.iter().map(|trial| trial.number).collect();
    assert_eq!(numbers, [4, 1, 3, 2]);
    assert!(trials[0].loss < trials[1].loss && trials[1].loss < trials[2].loss && trials[3].loss > 10.0);
    assert_eq!(trials[0].share, weights[4]);
    assert_eq!(trials[1].share, weights[0] + weights[1]);
    let board = Leaderboard {
        trials: &trials,
        target: &table.schema.target,
        name: "t.csv",
        options: &options,
        rows: 30,
    };
    let told = board.describe();
    let alone = plans[4].words().join(" ");
    let command = format!("annulus train --data t.csv 'columns.the town=ignore' target=sold {alone}");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 7, "{told}");
    assert!(
        lines[1].contains("log_loss") && lines[2].starts_with("      4 "),
        "{told}"
    );
    assert!(
        lines[2].ends_with(&format!(" %  {alone}"))
            && lines[3].ends_with(" %  the networks of annulus train"),
        "{told}"
    );
    assert!(lines[4].contains("      -  "), "{told}");
    assert_eq!(lines[6], format!("the best alone: {command}"));
    let card = board.card();
    assert!(
        card.contains("| 4 | 0.") && card.contains(&format!("`{command}`")),
        "{card}"
    );
}

#[test]
fn rows_as_json_get_the_same_answers_and_errors_name_the_column() {
    use serde_json::json;
    let predictor = predictor(&table());
    let plain = predictor
        .predict("a.csv", b"size,town\n40,Bern\n,Bonn\n")
        .unwrap()
        .text;
    let rows = json!([{"size": 40, "town": "Bern"}, {"town": "Bonn", "size": null, "sold": "?"}]);
    let answer = predictor.answer_json(&rows).unwrap();
    for (line, answer) in plain
        .lines()
        .skip(1)
        .zip(answer["predictions"].as_array().unwrap())
    {
        let (class, p) = (answer["sold"].as_str().unwrap(), &answer["probabilities"]);
        let text = format!(
            ",{class},{:.6},{:.6}",
            p["no"].as_f64().unwrap(),
            p["yes"].as_f64().unwrap()
        );
        assert!(line.ends_with(&text), "{line} {text}");
    }
    let one = predictor.answer_json(&rows[0]).unwrap();
    assert_eq!(one["predictions"][0], answer["predictions"][0]);
    for (row, told) in [
        (
            json!({"size": 40, "twon": "Bern"}),
            "row 0: there is no column \"twon\"; the model reads size, town",
        ),
        (json!({"size": 40}), "the column \"town\" is missing"),
        (
            json!({"size": "big", "town": "Bern"}),
            "column size: \"big\" is not a number",
        ),
        (
            json!([{"size": 1, "town": "Bern"}, 7]),
            "row 1: it must be an object",
        ),
    ] {
        let found = predictor.answer_json(&row).unwrap_err().to_string();
        assert!(found.contains(told), "{found}");
    }
    let inputs = predictor.inputs_json();
    assert_eq!(inputs["inputs"][1]["values"].as_array().unwrap().len(), 2);
}

#[test]
fn texts_are_read_by_their_words_in_files_and_as_json() {
    let row = |at: usize| {
        let (word, sold) = [("good", "yes"), ("bad", "no")][at % 2];
        format!("{at}: the soup was {word} today,{sold}\n")
    };
    let text = "review,sold\n".to_owned() + &(0..100).map(row).collect::<String>();
    let options = Options {
        target: "sold".into(),
        ..Options::default()
    };
    let table = Table::read("t.csv", text.as_bytes(), &options).unwrap();
    let told = table.describe();
    assert!(
        told.contains("\n  text      review (12 words and pairs)\n"),
        "{told}"
    );
    let ColumnKind::Text(words) = &table.schema.columns[0].kind else {
        panic!("{told}");
    };
    let good = words.terms.iter().position(|term| term == "good").unwrap();
    let mut member = linear(&table, 0.0);
    member.around.weight[2 * good + 1] = 8.0;
    let network = Network {
        members: vec![member],
    };
    let predictor = Predictor::new(table.schema.clone(), network, vec![1.0], Decision::default());
    let answers = predictor
        .predict("new.csv", b"review\nA GOOD one\n\"well, bad\"\nNA\n")
        .unwrap()
        .text;
    let found: Vec<&str> = answers.lines().skip(1).collect();
    // Of the first text no other word is known.
    let sure = 1.0 / (1.0 + (-8.0f64).exp());
    assert_eq!(found[0], format!("A GOOD one,yes,{:.6},{sure:.6}", 1.0 - sure));
    assert_eq!(
        found[1..],
        ["\"well, bad\",no,0.500000,0.500000", "NA,no,0.500000,0.500000"]
    );
    let json = serde_json::json!([{"review": "A GOOD one"}, {"review": "well, bad"}, {"review": null}]);
    let json = predictor.answer_json(&json).unwrap();
    let yes = |at: usize| json["predictions"][at]["probabilities"]["yes"].as_f64().unwrap();
    assert_eq!([yes(0), yes(1), yes(2)], [sure, 0.5, 0.5]);
    assert_eq!(predictor.inputs_json()["inputs"][0]["kind"], "text");
}

#[test]
fn other_spellings_of_a_value_get_the_same_answer_and_unseen_values_are_told() {
    let row = |at: usize| {
        format!(
            "{},{},{}\n",
            ["True", "False"][at % 2],
            [7, 8, 9][at % 3],
            ["no", "yes"][at % 2]
        )
    };
    let text = "member,code,sold\n".to_owned() + &(0..300).map(row).collect::<String>();
    let options = Options {
        target: "sold".into(),
        columns: [("code".to_owned(), crate::Kind::Category)].into(),
        ..Options::default()
    };
    let table = Table::read("t.csv", text.as_bytes(), &options).unwrap();
    let width = Features::of(&table.schema).without_bins();
    let member = Member {
        inputs: width,
        around: Dense {
            weight: (0..2 * width).map(|at| at as f32).collect(),
            bias: vec![0.0; 2],
        },
        layers: Vec::new(),
    };
    let members = vec![member];
    let predictor = Predictor::chosen(&table, Network { members }, 1, &options).unwrap();
    let rows = b"member,code\nTrue,7\ntrue,7.0\nTRUE,07\n1,+7\n1.0,7.00\n";
    let predicted = predictor.predict("new.csv", rows).unwrap();
    assert!(predicted.notes.is_empty(), "{:?}", predicted.notes);
    let answers: Vec<&str> = predicted
        .text
        .lines()
        .skip(1)
        .map(|line| line.splitn(3, ',').nth(2).unwrap())
        .collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let json =
        json!([{"member": true, "code": 7}, {"member": "TRUE", "code": 7.0}, {"member": 1, "code": "7"}]);
    let answer = predictor.answer_json(&json).unwrap();
    let answers = answer["predictions"].as_array().unwrap();
    assert!(answers.iter().all(|answer| answer == &answers[0]) && answer.get("warnings").is_none());

    let unseen = predictor
        .predict("new.csv", b"member,code\nTrue,5\nmaybe,6\n,8\n")
        .unwrap();
    let told = [
        "column code: 2 of the values, such as \"5\"",
        "column member: 1 of the values, such as \"maybe\"",
    ];
    assert!(
        told.iter()
            .zip([0, 1])
            .all(|(told, at)| unseen.notes[at].starts_with(told)),
        "{:?}",
        unseen.notes
    );
    let answer = predictor
        .answer_json(&json!({"member": "maybe", "code": null}))
        .unwrap();
    assert!(
        answer["warnings"][0]
            .as_str()
            .unwrap()
            .starts_with("column member: 1 of the values")
    );
}

/// A table in which one of fifty rows is of the class 1: those with a large x, but for some.
fn rare(threshold: &str) -> Result<(Table, Predictor), TableError> {
    let row = |at: usize| format!("{},{}\n", at % 50, u8::from(at % 50 == 49 || at % 100 == 48));
    let text = "x,y\n".to_owned() + &(0..3000).map(row).collect::<String>();
    let options = Options {
        target: "y".into(),
        threshold: threshold.into(),
        ..Options::default()
    };
    let table = Table::read("t.csv", text.as_bytes(), &options)?;
    let width = Features::of(&table.schema).without_bins();
    let mut weight = vec![0.0; 2 * width];
    weight[2 * width - 1] = 1.0;
    let member = Member {
        inputs: width,
        around: Dense {
            weight,
            bias: vec![4.0, 0.0],
        },
        layers: Vec::new(),
    };
    let members = vec![member];
    let predictor = Predictor::chosen(&table, Network { members }, 1, &options)?;
    Ok((table, predictor))
}

#[test]
fn a_class_that_is_never_the_answer_is_told_and_a_threshold_by_the_validation_rows_gives_it() {
    let (table, plain) = rare("0.5").unwrap();
    let judged = plain.judge(&table, &table.rows.test);
    let told = judged.describe("test", "rows", &table.schema.target);
    assert!(
        told.contains(
            "warning: the model never answers 1, the class of 9 of these rows: threshold=f1 answers"
        ),
        "{told}"
    );
    let value = |judged: &Judged, name: &str| {
        judged
            .metrics
            .iter()
            .find(|metric| metric.name == name)
            .unwrap()
            .value
    };
    assert_eq!(value(&judged, "f1"), 0.0);
    let best = value(&judged, "best_f1");
    assert!(best > 0.6, "{told}");

    let (_, chosen) = rare("f1").unwrap();
    let judged = chosen.judge(&table, &table.rows.test);
    assert_eq!(value(&judged, "f1"), best);
    assert!(
        !judged
            .describe("test", "rows", &table.schema.target)
            .contains("warning")
    );
    assert!(judged.confusion[1][1] > 0);
    let answers = chosen.predict("new.csv", b"x\n0\n49\n").unwrap().text;
    let said: Vec<&str> = answers
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(1).unwrap())
        .collect();
    assert_eq!(said, ["0", "1"]);
    assert_eq!(
        chosen.answer_json(&json!({"x": 49})).unwrap()["predictions"][0]["y"],
        "1"
    );
    let decision: Decision =
        serde_json::from_str(&serde_json::to_string(&chosen.decision()).unwrap()).unwrap();
    assert_eq!(decision, chosen.decision());

    for asked in ["half", "1", "-0.1", "NaN"] {
        let told = rare(asked).err().unwrap().to_string();
        assert!(
            told.contains(&format!("threshold={asked} is not possible")),
            "{told}"
        );
    }
}

#[test]
fn rows_with_the_right_answers_judge_a_model() {
    let (table, predictor) = rare("f1").unwrap();
    let rows: String = table
        .rows
        .test
        .iter()
        .map(|row| format!("{},{}\n", row % 50, table.target(*row)))
        .collect();
    let (judged, notes) = predictor
        .score("new.csv", format!("x,y\n{rows}").as_bytes())
        .unwrap();
    let wanted = predictor.judge(&table, &table.rows.test);
    assert_eq!((judged, notes), (wanted, vec![]));
    for (file, told) in [
        (
            &b"x\n1\n"[..],
            "new.csv lacks the column y, which tells the right answers",
        ),
        (
            b"x,y\n1,2\n",
            "line 2, column y: \"2\" is no answer that the model can give",
        ),
        (b"x,y\n", "no rows"),
        // Two faults of one row.
        (b"x,y\nq,2\n1,0\n", "1 of 2 rows"),
    ] {
        let error = predictor.score("new.csv", file).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_column_that_a_model_reads_matters_and_another_does_not() {
    let table = table();
    let importance = predictor(&table).importance(&table);
    let names: Vec<&str> = importance.iter().map(|one| one.column.as_str()).collect();
    assert_eq!(names, ["size", "town"]);
    assert!(
        importance[0].share > 0.5 && importance[1].share.abs() < 1e-9,
        "{importance:?}"
    );
    let told = describe_importance(&importance);
    assert!(
        told.starts_with("what the loss grows by without a column: size ") && told.ends_with("town 0 %"),
        "{told}"
    );
}

#[test]
fn a_key_that_comes_twice_is_refused_by_name() {
    let read = |text: &str| serde_json::from_str::<Unique>(text).map(|Unique(value)| value);
    let sound = r#"[{"a": -1, "b": [1.5, true, null, "x"]}, {"a": {"a": 18446744073709551615}}]"#;
    assert_eq!(
        read(sound).unwrap(),
        serde_json::from_str::<serde_json::Value>(sound).unwrap()
    );
    for twice in [
        r#"{"size": 1, "town": "x", "size": 2}"#,
        r#"[{"a": 1}, {"size": 1, "siz\u0065": 1}]"#,
    ] {
        let told = read(twice).unwrap_err().to_string();
        assert!(told.contains("the key \"size\" twice"), "{told}");
    }
    assert!(read("{").is_err() && read("1 2").is_err());
}
