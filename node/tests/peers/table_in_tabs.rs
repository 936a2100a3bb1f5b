//! The form of a table's model in a browser: in the page of a run, where it answers from the model that the tab holds, and of
//! `annulus serve`.

use crate::chromium::{CPU, Tab, installed, join, ready};
use crate::common::*;
use crate::served::Server;
use serde_json::{Value, json};
use std::path::Path;

/// Fills in the form, and returns what the model answers.
fn asked(tab: &mut Tab, age: &str, town: &str) -> Value {
    tab.until(
        "asked",
        "document.querySelector('#predict').ariaDisabled === 'false'",
    );
    tab.evaluate(&format!(
        "document.querySelector('[data-column=age]').value = {age:?}; \
         document.querySelector('[data-column=town]').value = {town:?};"
    ));
    tab.listen();
    let from = tab.log.len();
    tab.click("Predict");
    let told = tab.wait_from(from, "an answer", |message| message["type"] == "answer");
    assert_eq!(told["problem"], Value::Null);
    told["answer"]["predictions"][0].clone()
}

/// A picture for a person to look at, if `ANNULUS_SHOTS` names a folder.
fn shot(tab: &mut Tab, name: &str, width: u32) {
    let Some(folder) = std::env::var_os("ANNULUS_SHOTS") else {
        return;
    };
    let mobile = width < 600;
    let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile});
    tab.call("Emulation.setDeviceMetricsOverride", size);
    tab.evaluate("document.querySelector('#ask-section').scrollIntoView({block: 'center'})");
    tab.screenshot(&Path::new(&folder).join(name));
    tab.call("Emulation.clearDeviceMetricsOverride", json!({}));
}

/// A table whose last column follows from the others, but for every ninth row.
fn sales() -> String {
    let mut rows = String::from("age,town,bought\n");
    for at in 0..400 {
        let (age, town) = (18 + at * 37 % 60, ["Bern", "Bonn", "Basel"][at * 7 % 3]);
        let bought = (age > 45) != (town == "Bonn") && at % 9 != 0;
        rows += &format!("{age},{town},{}\n", if bought { "yes" } else { "no" });
    }
    rows
}

#[test]
fn the_form_of_a_served_model_answers() {
    let Some(browser) = installed() else {
        eprintln!("skipped: no Chromium is installed (Debian: chromium), so the form cannot be tried");
        return;
    };
    let _turn = beside();
    let folder = Folder::new("served-form");
    let (data, out) = (folder.join("sales.csv"), folder.join("run"));
    // Two columns have names of properties that the form itself needs.
    let table = sales().replacen("age,town", "elements,querySelector", 1);
    std::fs::write(&data, table).expect("writable");
    let trained = train_on(&data, &out, &["target=bought", "rounds=200"]);
    assert!(trained.status.success(), "{}", told(&trained));
    let server = Server::start(&format!("{out}/model.safetensors"));
    let row = br#"{"querySelector": "Bern", "elements": 70}"#;
    let (_, expected) = server.ask("POST /v1/predict", "", row);
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let bought = expected["predictions"][0]["bought"].as_str().expect("a class");
    let mut tab = Tab::open(&browser, "form", &format!("http://{}/", server.address()));
    tab.until(
        "fields",
        "document.querySelector('[data-column=elements]') !== null && !document.querySelector('form').hidden",
    );
    tab.evaluate(
        "document.querySelector('[data-column=elements]').value = '70'; \
         document.querySelector('[data-column=querySelector]').value = 'Bern'; \
         document.querySelector('button').click()",
    );
    tab.until("an answer", "document.querySelector('output').textContent !== ''");
    let shown = tab.evaluate("document.querySelector('output').textContent");
    let shown = shown.as_str().expect("text");
    assert!(
        shown.starts_with(&format!("bought: {bought}\n{bought}: ")),
        "{shown}"
    );
}

#[test]
fn the_form_in_a_tab_says_what_predict_says() {
    let Some(browser) = ready() else { return };
    let _turn = beside();
    let folder = Folder::new("tab-form");
    let (data, new) = (folder.join("sales.csv"), folder.join("new.csv"));
    std::fs::write(&data, sales()).expect("writable");
    let train = ["train", "--device", "cpu", "--data", &data, "target=bought"];
    let settings = ["rounds=300", "min_peers=2"];
    let mut node = Node::start("node", folder.join("node"), &[&train[..], &settings].concat());
    let mut tab = join(&browser, "tab", &node.url(), CPU);
    tab.members(2);
    // While the run goes on.
    let early = asked(&mut tab, "70", "Bern");
    assert!(early["probabilities"]["yes"].is_f64(), "{early}");

    // The node is gone, and the tab still holds the model.
    tab.wait("the end", |message| message["state"] == "ended");
    assert!(node.end().success(), "{}", node.errors());
    let questions = [("70", "Bern"), ("20.5", "Bonn"), ("", "Basel"), ("44", "")];
    let lines: Vec<String> = questions.map(|(age, town)| format!("{age},{town}\n")).to_vec();
    std::fs::write(&new, format!("age,town\n{}", lines.concat())).expect("writable");
    let output = run(&["predict", &node.dir, &new]);
    assert!(output.status.success(), "{}", told(&output));
    let predicted = String::from_utf8(output.stdout).expect("UTF-8");
    for ((age, town), expected) in questions.iter().zip(predicted.lines().skip(1)) {
        let answer = asked(&mut tab, age, town);
        let share = |class: &str| answer["probabilities"][class].as_f64().expect("a share");
        let bought = answer["bought"].as_str().expect("a class");
        let found = format!("{age},{town},{bought},{:.6},{:.6}", share("no"), share("yes"));
        assert_eq!(found, expected);
        let shown = tab.evaluate("document.querySelector('#answer').textContent");
        let shown = shown.as_str().expect("text");
        assert!(shown.starts_with(&format!("bought{bought}{bought}")), "{shown}");
    }
    shot(&mut tab, "desktop.png", 1280);
    shot(&mut tab, "phone.png", 390);
}
