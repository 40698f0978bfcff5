//! The meaning of a step's record.

/// The meaning of a step's recorded text, in addition to its name and input.
///
/// The same text can be the output of a body, the id of a child, or an instant. Code that takes one
/// for another would receive a value that nothing computed. So a step of another kind diverges from
/// the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The output of a body.
    Output,
    /// The child that was started.
    Child,
    /// The instant that the step waits for.
    Alarm,
    /// The payload of a signal.
    Signal,
    /// A value from the engine: an instant, an id or a number.
    Value,
}

impl StepKind {
    /// The fingerprint of a step of this kind with this input. An input of 0 means none.
    #[must_use]
    pub const fn fingerprint(self, input: i64) -> i64 {
        // Random constants. They are part of the stored records.
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
