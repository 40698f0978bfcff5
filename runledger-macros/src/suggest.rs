//! "Did you mean": the nearest valid word for a wrong one.

/// The word of `valid` that was probably meant: a known synonym first, else the nearest within a third of its length.
pub(crate) fn nearest<'a>(wrong: &str, valid: &[&'a str], synonyms: &[(&str, &'a str)]) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    if let Some((_, meant)) = synonyms.iter().find(|(synonym, _)| *synonym == wrong) {
        return Some(meant);
    }
    valid
        .iter()
        .map(|word| (distance(&wrong, word), *word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// `; did you mean …?`, or the semicolon alone: a remedy follows in either case.
pub(crate) fn did_you_mean(meant: Option<&str>) -> String {
    meant.map_or_else(|| ";".to_owned(), |word| format!("; did you mean `{word}`?"))
}

/// The edit distance in which swapping two neighbours counts as one edit (optimal string alignment).
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let replaced = above[j] + usize::from(a != b);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, distance, nearest};

    const WORDS: &[&str] = &["name", "queue", "max_attempts", "timeout"];
    const SYNONYMS: &[(&str, &str)] = &[("max_retries", "max_attempts")];

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        assert_eq!(distance("qeuue", "queue"), 1);
        assert_eq!(distance("queue", "queue"), 0);
        assert_eq!(distance("", "name"), 4);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn a_typing_slip_finds_its_word() {
        assert_eq!(nearest("timeuot", WORDS, SYNONYMS), Some("timeout"));
        assert_eq!(nearest("max_attempt", WORDS, SYNONYMS), Some("max_attempts"));
        assert_eq!(nearest("Queue", WORDS, SYNONYMS), Some("queue"));
    }

    #[test]
    fn a_synonym_wins_over_spelling() {
        assert_eq!(nearest("max_retries", WORDS, SYNONYMS), Some("max_attempts"));
    }

    #[test]
    fn a_word_that_resembles_nothing_gets_no_suggestion() {
        assert_eq!(nearest("colour", WORDS, SYNONYMS), None);
        assert_eq!(did_you_mean(None), ";");
        assert_eq!(did_you_mean(Some("name")), "; did you mean `name`?");
    }
}
