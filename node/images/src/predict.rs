//! A trained model with what is known of its pictures: judges itself on their parts and predicts new ones.

use crate::network::Network;
use crate::records::{Facts, Records};
use crate::threads;
use annulus_table::{Decision, Judged, Target, plain, softmax, tested};
use std::fmt::Write as _;

/// The name of a picture's class in files of predictions.
pub const TARGET: &str = "class";

/// All that a prediction needs.
#[derive(Clone, Debug)]
pub struct Predictor {
    facts: Facts,
    network: Network,
}

impl Predictor {
    /// A model of such pictures.
    pub fn new(facts: Facts, network: Network) -> Self {
        Self { facts, network }
    }

    /// The probability of each class for a record.
    pub fn answer(&self, record: &[u8]) -> Vec<f64> {
        let mut input = Vec::with_capacity(record.len());
        self.facts
            .input(record, crate::augment::Variation::default(), &mut input);
        softmax(&self.network.outputs(&input, self.facts.size))
    }

    /// The probability of each class for some pictures.
    pub fn answers(&self, records: &Records, pictures: &[usize]) -> Vec<Vec<f64>> {
        threads::map(pictures, |at| self.answer(records.record(*at)))
    }

    /// Judges the model on some pictures, at least one.
    pub fn judge(&self, records: &Records, pictures: &[usize]) -> Judged {
        let answers = self.answers(records, pictures);
        let actual: Vec<f64> = pictures.iter().map(|at| records.label(*at) as f64).collect();
        Judged::of(&records.target(), &answers, &actual, Decision::default())
    }

    /// The model card: what it does and how well, as Markdown with the front matter of Hugging Face.
    pub fn card(&self, test: &Judged) -> String {
        let Facts {
            name,
            classes,
            size,
            channels,
            ..
        } = &self.facts;
        let shown: Vec<String> = classes.iter().map(|class| plain(class)).collect();
        let (name, shown) = (plain(name), shown.join(", "));
        let colour = if *channels == 1 { "grey" } else { "colour" };
        let mut text = format!(
            "---\nlibrary_name: annulus\npipeline_tag: image-classification\n---\n# Classes of pictures in {name}\n\nThis model \
             tells which of {} classes a picture shows: {}. Use it with `annulus predict model.safetensors PICTURE`.\n\n## \
             Inputs\n\nThe middle square of a PNG or JPEG, averaged down to {size} x {size} pixels, in {colour}.\n",
            classes.len(),
            shown
        );
        let _ = write!(text, "{}", tested(test, "pictures"));
        text
    }
}

impl Records {
    /// What is predicted.
    pub fn target(&self) -> Target {
        let classes = self.facts.classes.clone();
        Target::Class {
            name: TARGET.into(),
            positive: annulus_table::positive(&classes, &self.counts),
            counts: self.counts.clone(),
            any_case: false,
            classes,
        }
    }
}

#[cfg(feature = "decode")]
mod pictures {
    use super::{Predictor, TARGET};
    use crate::decode::{OF_FILE, OF_REQUEST, decode, read};
    use crate::folder;
    use crate::records::{Fault, ImageError};
    use crate::resize::square;
    use crate::threads;
    use annulus_table::metrics::likeliest;
    use annulus_table::{class_json, write_class, write_field};
    use serde_json::{Value, json};
    use std::path::Path;

    /// Pictures that are in memory at a time.
    const AT_ONCE: usize = 256;

    impl Predictor {
        /// The probability of each class for a PNG or JPEG file's bytes. The picture may have `most` pixels.
        fn answer_file(&self, bytes: &[u8], most: usize) -> Result<Vec<f64>, String> {
            let picture = decode(bytes, most)?;
            Ok(self.answer(&square(&picture, self.facts.size, self.facts.channels)))
        }

        /// Answers a picture as CSV: a header, and a line with its name, the likeliest class, and the probability of each.
        ///
        /// # Errors
        ///
        /// If it is not a picture.
        pub fn predict(&self, name: &str, bytes: &[u8]) -> Result<String, ImageError> {
            let answer = self
                .answer_file(bytes, OF_FILE)
                .map_err(|why| ImageError(format!("{name}: {why}")))?;
            let mut out = self.header();
            self.line(&mut out, name, &answer);
            Ok(out)
        }

        /// Answers all pictures of a folder and its folders, by name.
        ///
        /// # Errors
        ///
        /// If there are none, or some cannot be used: all of them.
        pub fn predict_folder(&self, folder: &Path) -> Result<String, ImageError> {
            let (files, mut faults) = folder::all(folder)?;
            let mut out = self.header();
            for files in files.chunks(AT_ONCE) {
                let answers = threads::map(files, |(_, path)| self.answer_file(&read(path)?, OF_FILE));
                for ((name, _), answer) in files.iter().zip(answers) {
                    match answer {
                        Ok(answer) => self.line(&mut out, name, &answer),
                        Err(why) => faults.push(Fault {
                            file: name.clone(),
                            why,
                        }),
                    }
                }
            }
            match faults.is_empty() {
                true => Ok(out),
                false => Err(folder::refused(
                    folder,
                    &faults,
                    files.len() + faults.len(),
                    "Take them out of the folder",
                )),
            }
        }

        /// Answers a picture that somebody has sent as JSON.
        ///
        /// # Errors
        ///
        /// If it is not a picture, or has more than 25 million pixels.
        pub fn answer_json(&self, bytes: &[u8]) -> Result<Value, ImageError> {
            let answer = self
                .answer_file(bytes, OF_REQUEST)
                .map_err(|why| ImageError(format!("the picture: {why}")))?;
            Ok(
                json!({"predictions": [class_json(TARGET, (&self.facts.classes, likeliest(&answer)), &answer)]}),
            )
        }

        fn header(&self) -> String {
            let mut out = format!("file,{TARGET}_predicted");
            for class in &self.facts.classes {
                out.push(',');
                write_field(&mut out, &format!("{TARGET}_{class}"), b',');
            }
            out.push('\n');
            out
        }

        fn line(&self, out: &mut String, name: &str, answer: &[f64]) {
            write_field(out, name, b',');
            out.push(',');
            write_class(out, (&self.facts.classes, likeliest(answer)), answer, b',');
            out.push('\n');
        }
    }
}
