-- A number of permits that no call of `set_permits` accepts made each claim count up to it.
update runledger.resource set permits = 10000 where permits > 10000;

alter table runledger.resource add check (permits <= 10000);
