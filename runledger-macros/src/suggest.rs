//! "Did you mean": the nearest valid word for a wrong one.

use strsim::osa_distance;

/// Returns the word of `valid` that was probably meant: a known synonym first, otherwise the
/// nearest word within a third of its length.
pub(crate) fn nearest<'a>(wrong: &str, valid: &[&'a str], synonyms: &[(&str, &'a str)]) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    if let Some((_, meant)) = synonyms.iter().find(|(synonym, _)| *synonym == wrong) {
        return Some(meant);
    }
    valid
        .iter()
        .map(|word| (osa_distance(&wrong, word), *word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// `; did you mean …?`, or only the semicolon. A remedy follows in both cases.
pub(crate) fn did_you_mean(meant: Option<&str>) -> String {
    meant.map_or_else(|| ";".to_owned(), |word| format!("; did you mean `{word}`?"))
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, nearest};

    const WORDS: &[&str] = &["name", "queue", "max_attempts", "timeout"];
    const SYNONYMS: &[(&str, &str)] = &[("max_retries", "max_attempts")];

    #[test]
    fn swap_of_adjacent_letters_counts_as_one_edit() {
        assert_eq!(nearest("naem", WORDS, SYNONYMS), Some("name"));
        assert_eq!(nearest("nmea", WORDS, SYNONYMS), None);
    }

    #[test]
    fn typo_suggests_nearest_word() {
        assert_eq!(nearest("timeuot", WORDS, SYNONYMS), Some("timeout"));
        assert_eq!(nearest("max_attempt", WORDS, SYNONYMS), Some("max_attempts"));
        assert_eq!(nearest("Queue", WORDS, SYNONYMS), Some("queue"));
    }

    #[test]
    fn synonym_wins_over_spelling() {
        assert_eq!(nearest("max_retries", WORDS, SYNONYMS), Some("max_attempts"));
    }

    #[test]
    fn word_without_near_match_gets_no_suggestion() {
        assert_eq!(nearest("colour", WORDS, SYNONYMS), None);
        assert_eq!(did_you_mean(None), ";");
        assert_eq!(did_you_mean(Some("name")), "; did you mean `name`?");
    }
}
