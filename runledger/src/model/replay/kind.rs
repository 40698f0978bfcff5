//! What the record of a step means.

/// What the record of a step means, beside its name and its input. The same text is the output of a body, or the id of the child that a step has started, or an
/// instant: code that takes one for the other would be given a value that nothing has computed, so it does not follow the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// What a body has given.
    Output,
    /// The run that was started.
    Child,
    /// The instant until which it waits.
    Alarm,
    /// The payload of a signal.
    Signal,
    /// A value that the engine gave: an instant, an id, a number.
    Value,
}

impl StepKind {
    /// What identifies a step of this kind with this input; 0 is no input.
    #[must_use]
    pub const fn fingerprint(self, input: i64) -> i64 {
        // Drawn once; they are part of what is stored.
        let salt = match self {
            Self::Output => 0,
            Self::Child => 0x2f6e_81c4_5d90_3ab7,
            Self::Alarm => 0x61d3_0b9a_c7f2_4e58,
            Self::Signal => 0x1a94_f73d_286b_c0e5,
            Self::Value => 0x7c05_a2e8_914d_63f1,
        };
        input ^ salt
    }
}
