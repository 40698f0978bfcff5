-- limits: reads the time limits of this session that an operator can set on a role or a database.
-- in:    none
-- out:   name, millis, shown (with its unit); no row for a limit that is off or that the server
--        does not know
-- locks: none
-- index: none
select
    setting.name,
    setting.setting::bigint as millis,
    pg_catalog.current_setting(setting.name) as shown
from pg_catalog.pg_settings as setting
where setting.name in ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout', 'lock_timeout')
    and setting.setting <> '0'
order by setting.name
