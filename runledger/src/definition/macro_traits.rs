//! The types that a body may borrow. The traits exist for the compiler's messages about other
//! types.

use crate::connection::tx::Tx;

/// A type that the app may provide.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be injected: all running bodies share it, on several threads",
    label = "this type is not `Send + Sync + 'static`",
    note = "put what changes into a `Mutex`, an `RwLock` or an atomic, and take `Arc` for `Rc`"
)]
pub trait Injectable: Send + Sync + 'static {}

#[diagnostic::do_not_recommend]
impl<T: Send + Sync + 'static> Injectable for T {}

/// Fails to compile at the type's place in the source if the type cannot be injected.
pub const fn assert_injectable<T: Injectable>() {}

/// The mutably borrowed parameter of a transactional body.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be injected as `&mut`: only a transaction can",
    label = "this is not `Tx`",
    note = "write `&mut Tx` for the transaction; what the application provides is shared by all running bodies: take it as `&{Self}`, with a \
            lock inside if it changes"
)]
pub trait BodyTransaction {
    /// The transaction.
    fn of(tx: &mut Tx) -> &mut Self;
}

impl BodyTransaction for Tx {
    fn of(tx: &mut Tx) -> &mut Self {
        tx
    }
}

/// Lends the transaction to a body.
pub fn transaction<T: BodyTransaction + ?Sized>(tx: &mut Tx) -> &mut T {
    T::of(tx)
}
