//! Tables as training data: a CSV file in, rows of features out, and honest metrics of what a model makes of them.
//!
//! A person names a file and a column to predict. [`Table::read`] guesses the rest and reports every bad row at once. It
//! divides the rows into train, validation and test, and measures the columns in a [`Schema`]. [`Features`] turns a row into
//! numbers by the schema alone, so a model file that carries the schema is enough to predict: [`Predictor`]. [`metrics`]
//! judges predictions.
//!
//! Every peer of a run derives the schema itself from the same bytes. All arithmetic is in a fixed order, in integers or
//! f64 as IEEE defines it, without the platform's mathematics: native peers and browser tabs get equal bits.
//!
//! ```
//! use annulus_table::{Features, Options, Table};
//! let file = b"size,town,price\n80,Bern,200.5\n95,Bonn,300.5\n70,Bern,190.5\n60,Bonn,210.5\n90,Bern,260.5\n\
//!              75,Bonn,240.5\n85,Bern,230.5\n65,Bonn,220.5\n88,Bern,255.5\n79,Bonn,245.5\n";
//! let options = Options { target: "price".into(), ..Options::default() };
//! let table = Table::read("houses.csv", file, &options).unwrap();
//! assert_eq!(table.rows.train.len(), 8);
//! let features = Features::of(&table.schema);
//! let mut input = Vec::new();
//! features.write(table.cells(table.rows.train[0]), &mut input);
//! assert_eq!(input.len(), features.width());
//! ```

mod card;
mod category;
mod cells;
mod csv;
mod date;
mod error;
mod features;
mod frequent;
mod gzip;
mod kinds;
mod measure;
pub mod metrics;
mod network;
mod number;
mod options;
mod parquet;
mod plan;
mod predict;
mod row;
mod schema;
mod search;
mod split;
mod table;
mod text;

pub use card::{card, plain, tested};
pub use csv::write_field;
pub use date::Order;
pub use error::{Fault, FaultList, Faults, TableError};
pub use features::Features;
pub use gzip::unpacked;
pub use measure::{classes, positive};
pub use network::{Dense, Member, Network, softmax};
pub use number::{Notation, grouped, short};
pub use options::{BadRows, ClassWeights, Kind, Log, Model, Options};
pub use parquet::as_csv;
pub use plan::Plan;
pub use predict::{
    Decision, Importance, Judged, Predicted, Predictor, Unique, class_json, describe_importance, judge,
    write_class,
};
pub use row::Row;
pub use schema::{
    Categories, Column, ColumnKind, DatePart, Format, Ignored, Learnt, Numbers, Schema, Target, Trend,
};
pub use search::{Leaderboard, Trial, changed_settings};
pub use split::{Part, Split};
pub use table::Table;
pub use text::Words;
