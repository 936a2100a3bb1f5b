//! Loss curves of runs as a picture, in SVG.
//!
//! It must not know where the numbers come from.

use super::human;
use std::fmt::Write as _;

/// A run's losses. Each point is samples counted, and a loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What to call the run.
    pub name: String,
    /// Of each round's samples.
    pub train: Vec<(f64, f64)>,
    /// On held-out data.
    pub held_out: Vec<(f64, f64)>,
}

const WIDTH: f64 = 864.0;
const HEIGHT: f64 = 440.0;
/// Of the field that curves are drawn in.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = HEIGHT - 48.0;

/// Stretches of a curve: each point is the mean over one, as losses of single rounds are noise.
const STRETCHES: f64 = 150.0;

/// Told apart also by those who see few colours (Okabe and Ito 2008).
const COLOURS: [&str; 6] = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00"];

/// The picture: faint lines for training, strong ones with dots for held-out data. None if there is nothing to draw.
pub fn svg(title: &str, curves: &[Curve]) -> Option<String> {
    let all = curves.iter().flat_map(|c| c.train.iter().chain(&c.held_out));
    let end = Range::of(all.map(|p| p.0))?.most;
    let curves: Vec<Curve> = curves.iter().map(|c| smoothed(c, end / STRETCHES)).collect();
    let points = || curves.iter().flat_map(|c| c.train.iter().chain(&c.held_out));
    let (mut x, mut y) = (
        Range::of(points().map(|p| p.0))?,
        Range::of(points().map(|p| p.1))?,
    );
    x.least = 0.0;
    x.most = x.most.max(1.0);
    let margin = (0.05 * (y.most - y.least)).max(0.01);
    (y.least, y.most) = ((y.least - margin).max(0.0), y.most + margin);
    let at = |(px, py): (f64, f64)| {
        let right = LEFT + x.share(px) * (RIGHT - LEFT);
        let down = BOTTOM - y.share(py) * (BOTTOM - TOP);
        (right, down)
    };

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"ui-sans-serif,Helvetica,Arial,DejaVu Sans,sans-serif\" font-size=\"13\" fill=\"#d8dbe2\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    );
    for value in y.ticks() {
        let (_, down) = at((0.0, value));
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {down:.1}H{RIGHT}\" stroke=\"#d8dbe2\" stroke-opacity=\"0.15\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 8.0,
            down + 4.0
        );
    }
    for value in x.ticks() {
        let (right, _) = at((value, y.least));
        let _ = writeln!(
            out,
            "<text x=\"{right:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 18.0,
            human::short(value)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\" opacity=\"0.7\">samples</text>\
         <text x=\"{LEFT}\" y=\"{}\" text-anchor=\"end\" opacity=\"0.7\">loss</text>",
        BOTTOM + 36.0,
        TOP - 10.0
    );
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let _ = writeln!(
            out,
            "<g stroke=\"{colour}\" fill=\"none\" stroke-linejoin=\"round\">\
             <path d=\"{}\" stroke-opacity=\"0.4\"/><path d=\"{}\" stroke-width=\"2.5\"/></g>",
            path(curve.train.iter().map(|p| at(*p))),
            path(curve.held_out.iter().map(|p| at(*p)))
        );
        for point in &curve.held_out {
            let (right, down) = at(*point);
            let _ = writeln!(
                out,
                "<circle cx=\"{right:.1}\" cy=\"{down:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
            );
        }
    }
    for (row, (curve, colour)) in curves.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let down = TOP + 16.0 + 20.0 * row as f64;
        let last = match (curve.held_out.last(), curve.train.last()) {
            (Some((_, loss)), _) => format!(", held out {loss:.3} at the end"),
            (None, Some((_, loss))) => format!(", {loss:.3} at the end"),
            (None, None) => String::new(),
        };
        let _ = writeln!(
            out,
            "<circle cx=\"{}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{down:.1}\" text-anchor=\"end\">{}{last}</text>",
            RIGHT - 10.0,
            down - 4.5,
            RIGHT - 24.0,
            escaped(&curve.name)
        );
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// Means over stretches of the training's curve, without values that are not finite.
fn smoothed(curve: &Curve, stretch: f64) -> Curve {
    let finite = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points
            .iter()
            .filter(|p| p.0.is_finite() && p.1.is_finite())
            .copied()
            .collect()
    };
    let train = finite(&curve.train);
    let mean = |part: &[(f64, f64)]| {
        let count = part.len() as f64;
        let sum = part.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        (sum.0 / count, sum.1 / count)
    };
    Curve {
        name: curve.name.clone(),
        train: train
            .chunk_by(|a, b| (a.0 / stretch).floor() == (b.0 / stretch).floor())
            .map(mean)
            .collect(),
        held_out: finite(&curve.held_out),
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (i, (right, down)) in points.enumerate() {
        let _ = write!(path, "{}{right:.1} {down:.1}", if i == 0 { 'M' } else { 'L' });
    }
    path
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    least: f64,
    most: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        Some(Self {
            least: values.clone().reduce(f64::min)?,
            most: values.reduce(f64::max)?,
        })
    }

    /// Where a value lies: 0 at the least, 1 at the most.
    fn share(&self, value: f64) -> f64 {
        (value - self.least) / (self.most - self.least)
    }

    /// Four to nine round numbers in it.
    fn ticks(&self) -> Vec<f64> {
        let rough = (self.most - self.least) / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let fits = |step: &f64| *step >= rough;
        let step = [1.0, 2.0, 2.5, 5.0]
            .map(|m| m * power)
            .into_iter()
            .find(fits)
            .unwrap_or(10.0 * power);
        let (first, last) = (
            (self.least / step).ceil() as i64,
            (self.most / step).floor() as i64,
        );
        // Through text, so that 3 * 0.1 is 0.3.
        let round = |i: i64| format!("{:.9}", i as f64 * step).parse().unwrap_or(0.0);
        (first..=last).map(round).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, rounds: usize) -> Curve {
        let loss = |i: usize| (12.0 * (i + 1) as f64, 2.0 + 3.0 / (i + 1) as f64);
        Curve {
            name: name.into(),
            train: (0..rounds).map(loss).collect(),
            held_out: (0..rounds).step_by(10).map(loss).collect(),
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        let ticks = |least, most| Range { least, most }.ticks();
        assert_eq!(ticks(1.83, 4.21), [2.0, 2.5, 3.0, 3.5, 4.0]);
        assert_eq!(ticks(0.0, 24_000.0), [0.0, 5000.0, 10_000.0, 15_000.0, 20_000.0]);
        assert_eq!(ticks(0.05, 0.95), [0.2, 0.4, 0.6, 0.8]);
        for most in 1..200 {
            let ticks = ticks(0.3, f64::from(most));
            assert!((4..=9).contains(&ticks.len()), "{most}: {ticks:?}");
        }
    }

    #[test]
    fn a_picture_has_every_curve_inside_its_field() {
        let picture = svg("gpt <nano>", &[curve("alone", 2000), curve("three & more", 35)]).unwrap();
        assert!(picture.contains("gpt &lt;nano&gt;") && picture.contains("three &amp; more"));
        assert_eq!(picture.matches("<g stroke=").count(), 2);
        assert_eq!(picture.matches("<circle").count(), 200 + 4 + 2);
        assert!(picture.contains("held out 2.002 at the end"), "{picture}");
        // 2,000 rounds are 150 stretches and their end; the first 35 lie in three.
        let drawn = |p: &str| p.split('"').next().unwrap().split(['M', 'L']).skip(1).count();
        let paths: Vec<usize> = picture
            .split("<path d=\"M")
            .skip(1)
            .map(|p| drawn(&format!("M{p}")))
            .collect();
        assert!(paths.contains(&151) && paths.contains(&3), "{paths:?}");
        for pair in picture
            .split(['M', 'L'])
            .filter_map(|p| p.split('"').next()?.split_once(' '))
        {
            let (Ok(right), Ok(down)) = (pair.0.parse::<f64>(), pair.1.parse::<f64>()) else {
                continue;
            };
            assert!(
                (LEFT..=RIGHT).contains(&right) && (TOP..=BOTTOM).contains(&down),
                "{pair:?}"
            );
        }
    }

    #[test]
    fn what_is_not_finite_is_left_out_and_nothing_is_no_picture() {
        let mut broken = curve("broken", 20);
        broken.train[3].1 = f64::NAN;
        broken.held_out[0].1 = f64::INFINITY;
        let picture = svg("run", &[broken]).unwrap();
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        let nothing = Curve {
            train: vec![(1.0, f64::NAN)],
            held_out: Vec::new(),
            name: "nothing".into(),
        };
        assert_eq!(svg("run", &[nothing]), None);
    }
}
