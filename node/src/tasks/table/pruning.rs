//! Which hidden units of a table's networks can be taken out.

use annulus_table::Plan;

use crate::task::{Place, Units};

/// The hidden units of each network, of which those stay that the smaller plans have.
pub(super) fn units(before: &[Plan], after: &[Plan]) -> Vec<Units> {
    let mut units = Vec::new();
    for (member, (before, after)) in before.iter().zip(after).enumerate() {
        for (layer, (count, kept)) in before.hidden.iter().zip(&after.hidden).enumerate() {
            let at = |layer: usize, part: &str, axis| {
                Place::of(format!("members.{member}.layers.{layer}.{part}"), axis)
            };
            units.push(Units {
                count: *count,
                kept: *kept,
                places: vec![
                    at(layer, "weight", 1),
                    at(layer, "bias", 0),
                    at(layer + 1, "weight", 0),
                ],
            });
        }
    }
    units
}
