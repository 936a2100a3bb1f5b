//! Which channels of a model of pictures can be taken out.
//!
//! Whole groups go: then the groups that stay are normalized by the same numbers as before.

use annulus_images::{GROUP, Plan};

use crate::task::{Place, Units};

/// The groups of channels of a model, of which those stay that a plan with another width has.
pub(super) fn groups(plan: &Plan, width: usize) -> Vec<Units> {
    let units = |channels: usize, places: Vec<Place>| Units {
        count: channels / GROUP,
        kept: channels * width / plan.width / GROUP,
        places,
    };
    let at = |name: String, axis| Place::of(name, axis).each(GROUP);
    let made = |block: &str, number: usize| {
        let name = |part: &str| format!("{block}{part}");
        vec![
            at(name(&format!("conv{number}.weight")), 0),
            at(name(&format!("norm{number}.weight")), 0),
            at(name(&format!("norm{number}.bias")), 0),
        ]
    };
    let mut all = Vec::new();
    // What the next block reads, and all that add to it.
    let (mut stream, mut channels) = (made("", 1), plan.width);
    for (number, block) in plan.blocks.iter().enumerate() {
        let name = format!("blocks.{number}.");
        stream.push(at(format!("{name}conv1.weight"), 1));
        let mut own = made(&name, 1);
        if block.residual {
            own.push(at(format!("{name}conv2.weight"), 1));
            all.push(units(block.outputs, own));
            own = made(&name, 2);
            if !block.reshapes() {
                stream.append(&mut own);
                continue;
            }
            stream.push(at(format!("{name}downsample.weight"), 1));
            own.push(at(format!("{name}downsample.weight"), 0));
        }
        all.push(units(channels, std::mem::replace(&mut stream, own)));
        channels = block.outputs;
    }
    // The maximum of each channel, and behind these the means.
    let last = || at("fc.weight".into(), 0);
    stream.extend([last(), last().from(channels)]);
    all.push(units(channels, stream));
    all
}
