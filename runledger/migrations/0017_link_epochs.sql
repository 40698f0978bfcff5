-- The epoch of a gate's links. A link carries the epoch in which it was signed, and a revocation begins a new epoch, so that no earlier link is valid. A gate
-- without a row has the nil epoch: nobody has revoked its links.
create table runledger.link_epoch (
    run_id uuid primary key,
    epoch uuid not null
);
