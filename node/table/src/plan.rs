//! The settings of the networks that train side by side: the members of a model, the trials of a search, or one network as a
//! person describes it.

use crate::error::TableError;
use crate::features::Features;
use crate::number::grouped;
use crate::options::{Model, Options};

/// The shape of a network, how fast it learns, and what keeps it from learning rows by heart.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How many of a row's inputs it reads, from the first.
    pub inputs: usize,
    /// Whether bins are among them.
    pub bins: bool,
    /// Units of each hidden layer; none of a linear model.
    pub hidden: Vec<usize>,
    /// Multiplies the outputs of each layer, and so the effect of Adam's steps: its learning rate over the run's.
    pub rate: f32,
    /// Share of hidden units that each training row leaves out.
    pub dropout: f32,
    /// Times the sum of its squared weights, what is added to its loss.
    pub l2: f32,
}

/// Hidden layers, whether they read bins, and rate of each member. Sizes are those of the design's measurements; rates
/// below 1 are for tables on which the others learn their rows by heart, as stopping early would be.
const MEMBERS: [(&[usize], bool, f32); 8] = [
    (&[], false, 1.0),
    (&[], true, 0.3),
    (&[128, 64], false, 1.0),
    (&[128, 64], true, 1.0),
    (&[64, 64, 64], true, 1.0),
    (&[256], true, 0.3),
    (&[128, 64], true, 0.1),
    (&[64], false, 0.1),
];

/// The hidden layers that a trial may have: the members' sizes, and some between.
const HIDDEN: [&[usize]; 7] = [
    &[64],
    &[128, 64],
    &[64, 64, 64],
    &[256],
    &[128],
    &[32, 32],
    &[128, 128],
];

/// The rates. Those below 0.1 learnt too little in 1,000 rounds on titanic, diabetes, credit and churn_mlc.
const RATES: [f32; 4] = [0.1, 0.3, 1.0, 3.0];

/// From none to strong.
const DROPOUTS: [f32; 4] = [0.0, 0.1, 0.25, 0.5];

/// From none to strong.
const L2: [f32; 4] = [0.0, 1e-4, 1e-3, 1e-2];

/// See [`Plan::drawn`].
const STEPS: [u32; 5] = [
    3_785_032_106,
    3_335_640_776,
    2_939_605_022,
    2_590_590_015,
    2_283_013_049,
];

/// Most parameters of all trials together: each peer holds and exchanges them all.
const MOST_PARAMETERS: usize = 1_000_000;

/// Most parameters of the usual model, and the units that its hidden layers may have where it would have more; guesses.
const MOST_USUAL: usize = 5_000_000;
const NARROWER: [usize; 4] = [MOST_UNITS, 64, 16, 4];

/// Most trials; a guess.
const MOST_TRIALS: u32 = 128;

/// The usual width of hidden layers in percent, and the largest; a guess.
const USUAL: u32 = 100;
const MOST_WIDTH: u32 = 1_000;

/// Most hidden layers, and most units in one; a guess.
const MOST_LAYERS: usize = 8;
const MOST_UNITS: usize = 4_096;

impl Plan {
    /// How many networks the usual model has. A search begins with them: together they are its first trial.
    pub const USUAL: usize = MEMBERS.len();

    /// The networks that these options describe, for a table with these inputs. The first of several is linear.
    ///
    /// # Errors
    ///
    /// If the options contradict each other, or a search is too large.
    pub fn of(options: &Options, features: &Features, outputs: usize) -> Result<Vec<Self>, TableError> {
        let width = options.width;
        let most = if options.trials.is_some() {
            USUAL
        } else {
            MOST_WIDTH
        };
        if !(1..=most).contains(&width) {
            return bad("width", &width.to_string(), &format!("give 1 to {most} percent"));
        }
        let mut plans = Self::usual(options, features, outputs)?;
        let units = plans.iter_mut().flat_map(|plan| &mut plan.hidden);
        units.for_each(|units| *units = (*units * width as usize).div_ceil(100));
        Ok(plans)
    }

    /// The networks at their usual width.
    fn usual(options: &Options, features: &Features, outputs: usize) -> Result<Vec<Self>, TableError> {
        match (options.trials, options.model) {
            (Some(trials), _) => Self::trials(trials, options, features, outputs),
            (None, Model::Mlp) if options.hidden.is_empty() => {
                alone(
                    options,
                    "it describes one network: give its layers too, such as hidden=128-64",
                )?;
                Ok(Self::members(features, outputs))
            }
            (None, _) => Ok(vec![Self::one(options, features)?]),
        }
    }

    /// Those of the usual model. Of a table that is too wide for them, they read no numbers in bins, then have narrower first layers.
    fn members(features: &Features, outputs: usize) -> Vec<Self> {
        let all = |bins: bool, most: usize| -> Vec<Self> {
            let member = |(hidden, with_bins, rate): &(&[usize], bool, f32)| {
                let mut plan = Self::new(features, hidden, *with_bins && bins).learning(*rate);
                plan.hidden
                    .iter_mut()
                    .for_each(|units| *units = (*units).min(most));
                plan
            };
            MEMBERS.iter().map(member).collect()
        };
        let fits = |plans: &Vec<Self>| {
            plans.iter().map(|plan| plan.parameters(outputs)).sum::<usize>() <= MOST_USUAL
        };
        let narrower = NARROWER.into_iter().map(|most| all(false, most));
        let mut tried = std::iter::once(all(true, MOST_UNITS)).chain(narrower);
        tried.find(fits).unwrap_or_else(|| all(false, 1))
    }

    fn new(features: &Features, hidden: &[usize], bins: bool) -> Self {
        Self {
            inputs: match bins {
                true => features.width(),
                false => features.without_bins(),
            },
            bins,
            hidden: hidden.to_vec(),
            rate: 1.0,
            dropout: 0.0,
            l2: 0.0,
        }
    }

    fn learning(self, rate: f32) -> Self {
        Self { rate, ..self }
    }

    /// The one model that options describe.
    fn one(options: &Options, features: &Features) -> Result<Self, TableError> {
        let Options {
            bins,
            rate,
            dropout,
            l2,
            ..
        } = *options;
        let hidden = match options.model {
            Model::Linear if !options.hidden.is_empty() => {
                return bad(
                    "hidden",
                    &options.hidden,
                    "model=linear has no hidden layers: leave one of them out",
                );
            }
            Model::Linear => Vec::new(),
            Model::Mlp => layers(&options.hidden)?,
        };
        if !(rate.is_finite() && rate > 0.0) {
            return bad("rate", &rate.to_string(), "it must be greater than 0");
        }
        if !(0.0..1.0).contains(&dropout) {
            return bad(
                "dropout",
                &dropout.to_string(),
                "it must be at least 0 and below 1",
            );
        }
        if hidden.is_empty() && dropout > 0.0 {
            return bad(
                "dropout",
                &dropout.to_string(),
                "model=linear has no hidden units to leave out",
            );
        }
        if !(l2.is_finite() && l2 >= 0.0) {
            return bad("l2", &l2.to_string(), "it must be at least 0");
        }
        Ok(Self {
            dropout,
            l2,
            ..Self::new(features, &hidden, bins).learning(rate)
        })
    }

    fn trials(
        count: u32,
        options: &Options,
        features: &Features,
        outputs: usize,
    ) -> Result<Vec<Self>, TableError> {
        let asked = count.to_string();
        if options.model == Model::Linear {
            return bad(
                "trials",
                &asked,
                "model=linear is one model: leave one of them out",
            );
        }
        if !options.hidden.is_empty() {
            return bad(
                "trials",
                &asked,
                "hidden describes one network: leave one of them out",
            );
        }
        alone(
            options,
            "it describes one network, and a search draws it for each: leave it out",
        )?;
        if !(2..=MOST_TRIALS).contains(&count) {
            let why = format!("give 2 to {MOST_TRIALS}, of which the validation rows choose");
            return bad("trials", &asked, &why);
        }
        let drawn = (1..count).map(|number| Self::drawn(number, features));
        let plans: Vec<Self> = Self::members(features, outputs)
            .into_iter()
            .chain(drawn)
            .collect();
        let sizes = plans.iter().scan(0, |sum, plan| {
            *sum += plan.parameters(outputs);
            Some(*sum)
        });
        let room = sizes.take_while(|sum| *sum <= MOST_PARAMETERS).count();
        if room < plans.len() {
            let all: usize = plans.iter().map(|plan| plan.parameters(outputs)).sum();
            let remedy = match (room + 1).saturating_sub(Self::USUAL) {
                0 | 1 => "leave columns out with columns.NAME=ignore".into(),
                room => format!("give trials={room}, or leave columns out with columns.NAME=ignore"),
            };
            let (all, most) = (grouped(all as u64), grouped(MOST_PARAMETERS as u64));
            let why = format!("these have {all} parameters, and a search takes at most {most}: {remedy}");
            return bad("trials", &asked, &why);
        }
        Ok(plans)
    }

    /// The settings of a trial, by its number from 1; the same in every search.
    fn drawn(number: u32, features: &Features) -> Self {
        // One point of a Kronecker sequence after the other, which fills the space evenly. The steps are the powers of the
        // root of x^6 = x + 1 (Roberts 2018, "The unreasonable effectiveness of quasirandom sequences"), below 2^32.
        let pick = |step: u32, choices: usize| {
            let place = number.wrapping_mul(step);
            ((u64::from(place) * choices as u64) >> 32) as usize
        };
        Self {
            dropout: DROPOUTS[pick(STEPS[3], DROPOUTS.len())],
            l2: L2[pick(STEPS[4], L2.len())],
            ..Self::new(
                features,
                HIDDEN[pick(STEPS[0], HIDDEN.len())],
                pick(STEPS[1], 2) == 1,
            )
            .learning(RATES[pick(STEPS[2], RATES.len())])
        }
    }

    /// The options that describe this network alone, as a person types them.
    pub fn words(&self) -> Vec<String> {
        let plain = Options::default();
        let mut words = vec![match self.hidden.is_empty() {
            true => "model=linear".into(),
            false => {
                let units: Vec<String> = self.hidden.iter().map(usize::to_string).collect();
                format!("hidden={}", units.join("-"))
            }
        }];
        let told =
            |name: &str, value: f32, default: f32| (value != default).then(|| format!("{name}={value}"));
        words.extend(self.bins.then(|| "bins=true".into()));
        words.extend(told("rate", self.rate, plain.rate));
        words.extend(told("dropout", self.dropout, plain.dropout));
        words.extend(told("l2", self.l2, plain.l2));
        words
    }

    /// How many parameters it has, with this many outputs.
    pub fn parameters(&self, outputs: usize) -> usize {
        let around = (self.inputs, outputs);
        let layers = self.layers(outputs).into_iter().chain([around]);
        layers.map(|(inputs, outputs)| (inputs + 1) * outputs).sum()
    }

    /// Inputs and outputs of each layer, with `outputs` of the last; none of a linear model.
    pub fn layers(&self, outputs: usize) -> Vec<(usize, usize)> {
        if self.hidden.is_empty() {
            return Vec::new();
        }
        let ins = std::iter::once(self.inputs).chain(self.hidden.iter().copied());
        let outs = self.hidden.iter().copied().chain([outputs]);
        ins.zip(outs).collect()
    }
}

/// Units of hidden layers, as a person wrote them.
fn layers(text: &str) -> Result<Vec<usize>, TableError> {
    let units = |word: &str| word.parse().ok().filter(|units| (1..=MOST_UNITS).contains(units));
    let hidden: Option<Vec<usize>> = text.split('-').map(units).collect();
    match hidden {
        Some(hidden) if hidden.len() <= MOST_LAYERS => Ok(hidden),
        _ => {
            let why = format!(
                "write the units of each hidden layer, such as hidden=128-64; at most {MOST_LAYERS} layers of {MOST_UNITS} units"
            );
            bad("hidden", text, &why)
        }
    }
}

/// Whether none of the options is set that describe one model.
fn alone(options: &Options, why: &str) -> Result<(), TableError> {
    let plain = Options::default();
    let told = [
        ("bins", options.bins.to_string(), options.bins != plain.bins),
        ("rate", options.rate.to_string(), options.rate != plain.rate),
        (
            "dropout",
            options.dropout.to_string(),
            options.dropout != plain.dropout,
        ),
        ("l2", options.l2.to_string(), options.l2 != plain.l2),
    ];
    match told.iter().find(|(.., set)| *set) {
        Some((name, value, _)) => bad(name, value, why),
        None => Ok(()),
    }
}

fn bad<T>(name: &str, value: &str, why: &str) -> Result<T, TableError> {
    Err(TableError::Other(format!(
        "{name}={value} is not possible: {why}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;
    use serde_json::{Map, Value};

    fn features() -> Features {
        let rows: String = (0..40)
            .map(|at| format!("{},{}\n", at * 7 % 20, at % 2))
            .collect();
        let options = Options {
            target: "y".into(),
            ..Options::default()
        };
        let table = Table::read("t.csv", format!("x,y\n{rows}").as_bytes(), &options).unwrap();
        Features::of(&table.schema)
    }

    /// Options as a person types them.
    fn typed(words: &[String]) -> Options {
        let field = |word: &String| {
            let (key, value) = word.split_once('=').unwrap();
            let text = || Value::String(value.to_owned());
            let value = match key {
                "hidden" => text(),
                _ => serde_json::from_str(value).unwrap_or_else(|_| text()),
            };
            (key.to_owned(), value)
        };
        let fields: Map<String, Value> = words.iter().map(field).collect();
        serde_json::from_value(Value::Object(fields)).unwrap()
    }

    fn of(words: &str) -> Result<Vec<Plan>, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Plan::of(&typed(&words), &features(), 1).map_err(|error| error.to_string())
    }

    #[test]
    fn the_words_of_a_trial_describe_it_alone() {
        let all = of("trials=100").unwrap();
        let (usual, plans) = all.split_at(Plan::USUAL);
        assert_eq!(usual, of("model=mlp").unwrap());
        assert_eq!(plans.len(), 99);
        for plan in plans {
            assert_eq!(
                Plan::of(&typed(&plan.words()), &features(), 1).unwrap(),
                std::slice::from_ref(plan)
            );
        }
        // More trials only add to fewer, and each setting takes all of its values.
        assert_eq!(of("trials=12").unwrap(), all[..Plan::USUAL + 11]);
        for hidden in HIDDEN {
            assert!(plans.iter().any(|plan| plan.hidden == hidden), "{hidden:?}");
        }
        for dropout in DROPOUTS {
            assert!(plans.iter().any(|plan| plan.dropout == dropout), "{dropout}");
        }
        for l2 in L2 {
            assert!(plans.iter().any(|plan| plan.l2 == l2), "{l2}");
        }
    }

    #[test]
    fn parameters_are_those_of_all_layers_and_the_linear_path() {
        let plan = &of("hidden=3-2 bins=true").unwrap()[0];
        let inputs = features().width();
        assert_eq!(
            plan.parameters(4),
            (inputs + 1) * 3 + 4 * 2 + 3 * 4 + (inputs + 1) * 4
        );
    }

    #[test]
    fn settings_that_make_no_sense_get_advice() {
        for (words, told) in [
            ("trials=0", "trials=0 is not possible: give 2 to 128"),
            ("trials=1", "give 2 to 128"),
            ("trials=129", "give 2 to 128"),
            (
                "trials=12 model=linear",
                "model=linear is one model: leave one of them out",
            ),
            ("trials=12 hidden=64", "hidden describes one network"),
            (
                "trials=12 l2=0.1",
                "l2=0.1 is not possible: it describes one network, and a search",
            ),
            ("dropout=0.1", "give its layers too, such as hidden=128-64"),
            (
                "hidden=64-x",
                "hidden=64-x is not possible: write the units of each hidden layer",
            ),
            ("hidden=0", "write the units"),
            ("hidden=1-1-1-1-1-1-1-1-1", "at most 8 layers of 4096 units"),
            (
                "hidden=64 dropout=1",
                "dropout=1 is not possible: it must be at least 0 and below 1",
            ),
            (
                "hidden=64 rate=0",
                "rate=0 is not possible: it must be greater than 0",
            ),
            ("hidden=64 l2=-1", "l2=-1 is not possible: it must be at least 0"),
            ("hidden=64 model=linear", "model=linear has no hidden layers"),
            (
                "model=linear dropout=0.5",
                "model=linear has no hidden units to leave out",
            ),
        ] {
            let found = of(words).unwrap_err();
            assert!(found.contains(told), "{words}: {found}");
        }
    }

    #[test]
    fn a_search_of_more_than_a_million_parameters_is_told_how_many_fit() {
        let options = |trials| Options {
            trials: Some(trials),
            ..Options::default()
        };
        // A hundred outputs of a table with one input.
        let features = features();
        let all = |trials| Plan::of(&options(trials), &features, 200);
        let told = all(100).unwrap_err().to_string();
        let (_, room) = told.split_once("give trials=").expect(&told);
        let room: u32 = room.split(',').next().unwrap().parse().unwrap();
        assert!(told.contains("a search takes at most 1,000,000"), "{told}");
        let parameters = |plans: &[Plan]| plans.iter().map(|plan| plan.parameters(200)).sum::<usize>();
        let fits = all(room).unwrap();
        assert!(parameters(&fits) <= MOST_PARAMETERS);
        assert!(all(room + 1).is_err());
        let told = Plan::of(&options(2), &features, 600_000).unwrap_err().to_string();
        assert!(told.contains("leave columns out with columns.NAME=ignore") && !told.contains("give trials"));
    }
}
