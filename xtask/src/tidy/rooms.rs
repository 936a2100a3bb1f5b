//! The rooms of a crate, its top folders, from the lowest to the highest: a room imports only from rooms below it, so
//! that each can be read and tested without those above.

use super::circles::needs;
use super::modules::Crate;
use std::path::Path;

/// The folders whose rooms have an order, and their rooms, lowest first.
const ORDER: [(&str, &[&str]); 1] = [(
    "core/src/",
    &[
        "base",
        "numeric",
        "access",
        "run",
        "placement",
        "ledger",
        "wire",
        "collective",
        "state",
        "reach",
        "peer",
        "sim",
    ],
)];

/// Imports from a room above, and files outside of all rooms.
pub fn misplaced(all: &Crate, relative: impl Fn(&Path) -> String) -> Vec<String> {
    let names: Vec<String> = all.files.iter().map(|file| relative(file)).collect();
    let Some((folder, rooms)) = ORDER.iter().find(|(folder, _)| names[0].starts_with(folder)) else {
        return Vec::new();
    };
    let room = |file: usize| {
        let (room, _) = names[file].strip_prefix(folder)?.split_once('/')?;
        rooms.iter().position(|known| *known == room)
    };
    let homeless = (1..names.len()).filter(|file| room(*file).is_none());
    let homeless = homeless.map(|file| format!("{}: is in no room of xtask/src/tidy/rooms.rs", names[file]));
    let needs = needs(all);
    let upward = needs.iter().filter_map(|need| {
        let (from, to) = (room(need.from)?, room(need.to)?);
        let said = format!(
            "{}:{} is in `{}`, above `{}`: move the name down, or the import up",
            names[need.from], need.what, rooms[to], rooms[from]
        );
        (to > from).then_some(said)
    });
    homeless.chain(upward).collect()
}
