//! Takes a training step of Burn's own for each line on standard input, and prints its loss and time:
//! so that another program can alternate with its own steps on the same machine.
//!
//! `annulus-stock gpt VOCABULARY CONTEXT WIDTH LAYERS HEADS BIAS BATCH gpu|cpu` or
//! `annulus-stock mlp HIDDEN BATCH gpu|cpu`

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Instant;

use annulus_stock::{GptShape, GptTraining, MlpTraining, TUNED, Training, open_gpu};
use burn::tensor::Device;

const USAGE: &str = "usage: annulus-stock gpt VOCABULARY CONTEXT WIDTH LAYERS HEADS BIAS BATCH gpu|cpu, or \
                     annulus-stock mlp HIDDEN BATCH gpu|cpu";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["about"] {
        println!("burn 0.22.1{}", if TUNED { ", fusion and tuning" } else { "" });
        return ExitCode::SUCCESS;
    }
    let mut training = match training(&arguments) {
        Ok(training) => training,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        if line.is_err() {
            break;
        }
        let start = Instant::now();
        let loss = training.step();
        let written = writeln!(out, "{loss} {}", start.elapsed().as_secs_f64()).and_then(|()| out.flush());
        if written.is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn training(arguments: &[String]) -> Result<Box<dyn Training>, String> {
    let [kind, numbers @ .., device] = arguments else {
        return Err(USAGE.to_owned());
    };
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|text| text.parse().map_err(|_| USAGE.to_owned()))
        .collect::<Result<_, _>>()?;
    let device = match device.as_str() {
        "cpu" => Device::flex(),
        "gpu" => open_gpu().ok_or("no adapter, not even a software one")?,
        _ => return Err(USAGE.to_owned()),
    };
    match (kind.as_str(), numbers.as_slice()) {
        ("gpt", &[vocabulary, context, width, layers, heads, bias, batch]) => {
            let shape = GptShape {
                vocabulary,
                context,
                width,
                layers,
                heads,
                bias: bias != 0,
            };
            Ok(Box::new(GptTraining::new(shape, batch, &device)))
        }
        ("mlp", &[hidden, batch]) => Ok(Box::new(MlpTraining::new(hidden, batch, &device))),
        _ => Err(USAGE.to_owned()),
    }
}
