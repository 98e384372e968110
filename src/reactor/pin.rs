//! Which processors the cores of a process are pinned to.

use crate::base::error::ErrorKind;
use crate::base::{Error, Result};

/// A processor for each of `cores` cores: `first` and those this process may use after it, or all it may use in turn. `None`
/// where that is nobody's wish or there are too few: the kernel places the threads.
///
/// # Errors
/// This process may not use `first`, or too few after it.
pub fn processors(cores: usize, first: Option<usize>) -> Result<Option<Vec<usize>>> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect::<Vec<_>>();
    choose(&allowed, cores, first)
}

fn choose(allowed: &[usize], cores: usize, first: Option<usize>) -> Result<Option<Vec<usize>>> {
    let Some(first) = first else {
        return Ok((cores > 1 && allowed.len() >= cores).then(|| allowed[..cores].to_vec()));
    };
    if cores == 1 {
        // Whether it may be used shows when the core is pinned.
        return Ok(Some(vec![first]));
    }
    let chosen: Vec<usize> = allowed.iter().copied().filter(|&cpu| cpu >= first).take(cores).collect();
    if chosen.first() != Some(&first) || chosen.len() < cores {
        let what = format!("{cores} cores from processor {first} on: this process may use {allowed:?}");
        return Err(Error::new(ErrorKind::Usage, what).remedy("a lower --cpu, fewer --cores, or neither pinned: leave --cpu out"));
    }
    Ok(Some(chosen))
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn cores_take_the_allowed_processors_in_turn() {
        let allowed = [0, 2, 3, 7];
        assert_eq!(choose(&allowed, 1, None).unwrap(), None);
        assert_eq!(choose(&allowed, 1, Some(5)).unwrap(), Some(vec![5]));
        assert_eq!(choose(&allowed, 3, None).unwrap(), Some(vec![0, 2, 3]));
        assert_eq!(choose(&allowed, 5, None).unwrap(), None);
        assert_eq!(choose(&allowed, 2, Some(2)).unwrap(), Some(vec![2, 3]));
        for (cores, first) in [(2, 7), (2, 1), (4, 2)] {
            let error = choose(&allowed, cores, Some(first)).unwrap_err().to_string();
            assert!(error.contains(&format!("processor {first}")) && error.contains("[0, 2, 3, 7]"), "{error}");
        }
    }
}
