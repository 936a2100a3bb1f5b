//! Numbers that PyTorch has computed: `pytorch.py` writes `pytorch.txt`.

/// `count` numbers between -1 and 1, as `pytorch.py` makes them.
pub fn wave(count: usize, seed: f64) -> Vec<f32> {
    (0..count)
        .map(|at| libm::sin(0.7 * at as f64 + seed) as f32)
        .collect()
}

/// The numbers of this name.
pub fn reference(name: &str) -> Vec<f32> {
    let lines = include_str!("pytorch.txt").lines();
    let line = lines
        .filter_map(|line| line.split_once(' '))
        .find(|(of, _)| *of == name);
    let (_, numbers) = line.unwrap_or_else(|| panic!("pytorch.txt has no {name}"));
    numbers
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect()
}
