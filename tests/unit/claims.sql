-- a plain queue | sqlite | compare_and_set
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE email.id IN (SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, recipient, subject, status, owner, owner_date;

-- a plain queue | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE email.id = any(array((SELECT email.id
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed')
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF email SKIP LOCKED))) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.recipient, sa_jobqueue_claimed.subject, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.id;

-- a plain queue | postgresql | candidates
SELECT email.id
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed')
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, statement_timestamp() AS sa_jobqueue_date
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR NO KEY UPDATE OF email SKIP LOCKED;
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a plain queue | postgresql | held
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed')
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF email SKIP LOCKED;

-- a plain queue | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT email.id AS sa_jobqueue_0, CAST(email.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (email.id BETWEEN -2147483648 AND 2147483647) THEN CAST(email.id AS INTEGER) ELSE hash_record(row(email.id)) END AS sa_jobqueue_2
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed') AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY email.status, email.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed';

-- a plain queue | mysql | skip_locked
SELECT /*+ INDEX(email ix_email_claim) */ email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email
    WHERE email.status = 'unclaimed' AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a plain queue | mysql | candidates
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a plain queue | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE email FORCE INDEX (ix_email_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'claimed' AND email.owner = :sa_jobqueue_owner AND email.owner_date = :sa_jobqueue_owner_date
    ORDER BY email.id;

-- a plain queue | mysql | held
SELECT /*+ INDEX(email ix_email_claim) */ email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'unclaimed' AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a plain queue | mariadb | skip_locked
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (ix_email_claim)
    WHERE email.status = 'unclaimed' AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a plain queue | mariadb | candidates
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a plain queue | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE email FORCE INDEX (ix_email_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'claimed' AND email.owner = :sa_jobqueue_owner AND email.owner_date = :sa_jobqueue_owner_date
    ORDER BY email.id;

-- a plain queue | mariadb | held
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email FORCE INDEX (ix_email_claim)
    WHERE email.status = 'unclaimed' AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a predicate | sqlite | compare_and_set
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE email.id IN (SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, recipient, subject, status, owner, owner_date;

-- a predicate | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE email.id = any(array((SELECT email.id
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient LIKE :recipient_1
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF email SKIP LOCKED))) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.recipient, sa_jobqueue_claimed.subject, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.id;

-- a predicate | postgresql | candidates
SELECT email.id
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient LIKE :recipient_1
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, statement_timestamp() AS sa_jobqueue_date
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id
    FOR NO KEY UPDATE OF email SKIP LOCKED;
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a predicate | postgresql | held
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient LIKE :recipient_1
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF email SKIP LOCKED;

-- a predicate | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT email.id AS sa_jobqueue_0, CAST(email.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (email.id BETWEEN -2147483648 AND 2147483647) THEN CAST(email.id AS INTEGER) ELSE hash_record(row(email.id)) END AS sa_jobqueue_2
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed') AND email.recipient LIKE :recipient_1 AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY email.status, email.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed' AND email.recipient LIKE :recipient_1;

-- a predicate | mysql | skip_locked
SELECT /*+ INDEX(email ix_email_claim) */ email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1 AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a predicate | mysql | candidates
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a predicate | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE email FORCE INDEX (ix_email_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'claimed' AND email.owner = :sa_jobqueue_owner AND email.owner_date = :sa_jobqueue_owner_date
    ORDER BY email.id;

-- a predicate | mysql | held
SELECT /*+ INDEX(email ix_email_claim) */ email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1 AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a predicate | mariadb | skip_locked
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (ix_email_claim)
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1 AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a predicate | mariadb | candidates
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a predicate | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE email FORCE INDEX (ix_email_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email
    WHERE email.status = 'claimed' AND email.owner = :sa_jobqueue_owner AND email.owner_date = :sa_jobqueue_owner_date
    ORDER BY email.id;

-- a predicate | mariadb | held
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date
    FROM email FORCE INDEX (ix_email_claim)
    WHERE email.status = 'unclaimed' AND email.recipient LIKE :recipient_1 AND email.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM email AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY email.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- priorities and times | sqlite | compare_and_set
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1 OFFSET :param_2;
UPDATE task SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits), attempts=(task.attempts + :attempts_1)
    WHERE task.id IN (SELECT task.id
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, name, touched, status, owner, owner_date, priority, run_at, attempts, max_attempts, last_error;

-- priorities and times | postgresql | skip_locked
WITH RECURSIVE sa_jobqueue_priorities(priority) AS (SELECT (SELECT sa_jobqueue_waiting.priority
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed'
    ORDER BY sa_jobqueue_waiting.priority LIMIT :param_1) AS priority
    UNION ALL SELECT (SELECT sa_jobqueue_waiting.priority
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND (sa_jobqueue_waiting.status, sa_jobqueue_waiting.priority) > ('unclaimed', sa_jobqueue_priorities.priority)
    ORDER BY sa_jobqueue_waiting.priority LIMIT :param_2) AS anon_1
    FROM sa_jobqueue_priorities
    WHERE sa_jobqueue_priorities.priority IS NOT NULL), sa_jobqueue_claimed AS (UPDATE task SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp()), attempts=(task.attempts + :attempts_1)
    WHERE task.id = any(array((SELECT sa_jobqueue_due.id
    FROM sa_jobqueue_priorities JOIN LATERAL (SELECT task.id AS id
    FROM task
    WHERE task.status = 'unclaimed' AND task.priority = sa_jobqueue_priorities.priority AND task.run_at <= statement_timestamp()
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE SKIP LOCKED) AS sa_jobqueue_due ON true LIMIT :sa_jobqueue_limit))) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.name, sa_jobqueue_claimed.touched, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.priority, sa_jobqueue_claimed.run_at, sa_jobqueue_claimed.attempts, sa_jobqueue_claimed.max_attempts, sa_jobqueue_claimed.last_error
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.priority, sa_jobqueue_claimed.run_at, sa_jobqueue_claimed.id;

-- priorities and times | postgresql | candidates
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= statement_timestamp() AND task.priority = :sa_jobqueue_priority AND task.status LIKE 'unclaimed'
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error, statement_timestamp() AS sa_jobqueue_date
    FROM task
    WHERE task.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND task.status = 'unclaimed' AND task.run_at <= statement_timestamp()
    ORDER BY task.priority, task.run_at, task.id
    FOR NO KEY UPDATE OF task SKIP LOCKED;
UPDATE task SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date, attempts=(task.attempts + :attempts_1)
    WHERE task.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- priorities and times | postgresql | held
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= statement_timestamp() AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF task SKIP LOCKED;

-- priorities and times | postgresql | advisory
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT task.id AS sa_jobqueue_0, CAST(task.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (task.id BETWEEN -2147483648 AND 2147483647) THEN CAST(task.id AS INTEGER) ELSE hash_record(row(task.id)) END AS sa_jobqueue_2
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= statement_timestamp() AND task.priority = :sa_jobqueue_priority AND task.status LIKE 'unclaimed' AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY task.run_at, task.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task
    WHERE task.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND task.status = 'unclaimed' AND task.run_at <= statement_timestamp();

-- priorities and times | mysql | skip_locked
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT /*+ INDEX(task ix_task_claim) */ task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority AND task.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE task FORCE INDEX (PRIMARY) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date, attempts=(task.attempts + :attempts_1)
    WHERE (task.id IN :sa_jobqueue_keys) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- priorities and times | mysql | candidates
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id
    FROM task IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM task FORCE INDEX (PRIMARY)
    WHERE (task.id IN :sa_jobqueue_keys) AND task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6)
    ORDER BY task.priority, task.run_at, task.id
    FOR UPDATE SKIP LOCKED;
UPDATE task FORCE INDEX (PRIMARY) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date, attempts=(task.attempts + :attempts_1)
    WHERE (task.id IN :sa_jobqueue_keys) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- priorities and times | mysql | update_then_select
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SAVEPOINT sa_jobqueue_claim;
UPDATE task FORCE INDEX (ix_task_claim) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01'), attempts=(task.attempts + :attempts_1)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task
    WHERE task.status = 'claimed' AND task.owner = :sa_jobqueue_owner AND task.owner_date = :sa_jobqueue_owner_date
    ORDER BY task.priority, task.run_at, task.id;

-- priorities and times | mysql | held
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT /*+ INDEX(task ix_task_claim) */ task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority AND task.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- priorities and times | mariadb | skip_locked
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM task FORCE INDEX (ix_task_claim)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority AND task.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE task FORCE INDEX (PRIMARY) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date, attempts=(task.attempts + :attempts_1)
    WHERE (task.id IN :sa_jobqueue_keys) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- priorities and times | mariadb | candidates
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id
    FROM task IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM task FORCE INDEX (PRIMARY)
    WHERE (task.id IN :sa_jobqueue_keys) AND task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6)
    ORDER BY task.priority, task.run_at, task.id
    FOR UPDATE SKIP LOCKED;
UPDATE task FORCE INDEX (PRIMARY) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date, attempts=(task.attempts + :attempts_1)
    WHERE (task.id IN :sa_jobqueue_keys) AND CASE WHEN (task.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- priorities and times | mariadb | update_then_select
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SAVEPOINT sa_jobqueue_claim;
UPDATE task FORCE INDEX (ix_task_claim) SET touched=lower(:lower_1), status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01'), attempts=(task.attempts + :attempts_1)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task
    WHERE task.status = 'claimed' AND task.owner = :sa_jobqueue_owner AND task.owner_date = :sa_jobqueue_owner_date
    ORDER BY task.priority, task.run_at, task.id;

-- priorities and times | mariadb | held
SELECT task.priority
    FROM task
    WHERE task.status = 'unclaimed'
    ORDER BY task.priority LIMIT :param_1;
SELECT task.id, task.name, task.touched, task.status, task.owner, task.owner_date, task.priority, task.run_at, task.attempts, task.max_attempts, task.last_error
    FROM task FORCE INDEX (ix_task_claim)
    WHERE task.status = 'unclaimed' AND task.run_at <= UTC_TIMESTAMP(6) AND task.priority = :sa_jobqueue_priority AND task.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM task AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY task.run_at, task.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- two columns of the key | sqlite | compare_and_set
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1 OFFSET :param_2;
UPDATE pair SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE (pair."left", pair."right") IN (SELECT pair."left", pair."right"
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000') AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair."left", pair."right" LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING "left", "right", status, owner, owner_date, priority, run_at;

-- two columns of the key | postgresql | skip_locked
WITH RECURSIVE sa_jobqueue_priorities(priority) AS (SELECT (SELECT sa_jobqueue_waiting.priority
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed'
    ORDER BY sa_jobqueue_waiting.priority LIMIT :param_1) AS priority
    UNION ALL SELECT (SELECT sa_jobqueue_waiting.priority
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND (sa_jobqueue_waiting.status, sa_jobqueue_waiting.priority) > ('unclaimed', sa_jobqueue_priorities.priority)
    ORDER BY sa_jobqueue_waiting.priority LIMIT :param_2) AS anon_1
    FROM sa_jobqueue_priorities
    WHERE sa_jobqueue_priorities.priority IS NOT NULL), sa_jobqueue_picked AS MATERIALIZED (SELECT sa_jobqueue_due."left" AS "left", sa_jobqueue_due."right" AS "right"
    FROM sa_jobqueue_priorities JOIN LATERAL (SELECT pair."left" AS "left", pair."right" AS "right"
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.priority = sa_jobqueue_priorities.priority AND pair.run_at <= statement_timestamp()
    ORDER BY pair.run_at, pair."left", pair."right" LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE SKIP LOCKED) AS sa_jobqueue_due ON true LIMIT :sa_jobqueue_limit), sa_jobqueue_claimed AS (UPDATE pair SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    FROM sa_jobqueue_picked
    WHERE pair."left" = sa_jobqueue_picked."left" AND pair."right" = sa_jobqueue_picked."right" AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING pair."left", pair."right", pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at) SELECT sa_jobqueue_claimed."left", sa_jobqueue_claimed."right", sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.priority, sa_jobqueue_claimed.run_at
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.priority, sa_jobqueue_claimed.run_at, sa_jobqueue_claimed."left", sa_jobqueue_claimed."right";

-- two columns of the key | postgresql | candidates
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair."left", pair."right"
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= statement_timestamp() AND pair.priority = :sa_jobqueue_priority AND pair.status LIKE 'unclaimed'
    ORDER BY pair.run_at, pair."left", pair."right" LIMIT :sa_jobqueue_limit;
SELECT pair."left", pair."right", pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at, statement_timestamp() AS sa_jobqueue_date
    FROM pair
    WHERE (pair."left", pair."right") IN (:sa_jobqueue_keys) AND pair.status = 'unclaimed' AND pair.run_at <= statement_timestamp()
    ORDER BY pair.priority, pair.run_at, pair."left", pair."right"
    FOR NO KEY UPDATE OF pair SKIP LOCKED;
UPDATE pair SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (pair."left", pair."right") IN (:sa_jobqueue_keys) AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- two columns of the key | postgresql | held
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair."left", pair."right", pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= statement_timestamp() AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair."left", pair."right" LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF pair SKIP LOCKED;

-- two columns of the key | postgresql | advisory
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2, sa_jobqueue_candidates.sa_jobqueue_3
    FROM (SELECT pair."left" AS sa_jobqueue_0, pair."right" AS sa_jobqueue_1, CAST(pair.tableoid AS INTEGER) AS sa_jobqueue_2, hash_record(row(pair."left", pair."right")) AS sa_jobqueue_3
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= statement_timestamp() AND pair.priority = :sa_jobqueue_priority AND pair.status LIKE 'unclaimed' AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY pair.run_at, pair."left", pair."right" LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_2, sa_jobqueue_candidates.sa_jobqueue_3) LIMIT :sa_jobqueue_limit;
SELECT pair."left", pair."right", pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair
    WHERE (pair."left", pair."right") IN (:sa_jobqueue_keys) AND pair.status = 'unclaimed' AND pair.run_at <= statement_timestamp();

-- two columns of the key | mysql | skip_locked
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT /*+ INDEX(pair ix_pair_claim) */ pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority AND pair.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE pair FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- two columns of the key | mysql | candidates
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair.`left`, pair.`right`
    FROM pair IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM pair FORCE INDEX (PRIMARY)
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6)
    ORDER BY pair.priority, pair.run_at, pair.`left`, pair.`right`
    FOR UPDATE SKIP LOCKED;
UPDATE pair FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- two columns of the key | mysql | update_then_select
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SAVEPOINT sa_jobqueue_claim;
UPDATE pair FORCE INDEX (ix_pair_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair
    WHERE pair.status = 'claimed' AND pair.owner = :sa_jobqueue_owner AND pair.owner_date = :sa_jobqueue_owner_date
    ORDER BY pair.priority, pair.run_at, pair.`left`, pair.`right`;

-- two columns of the key | mysql | held
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT /*+ INDEX(pair ix_pair_claim) */ pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority AND pair.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- two columns of the key | mariadb | skip_locked
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM pair FORCE INDEX (ix_pair_claim)
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority AND pair.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE pair FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- two columns of the key | mariadb | candidates
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair.`left`, pair.`right`
    FROM pair IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM pair FORCE INDEX (PRIMARY)
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6)
    ORDER BY pair.priority, pair.run_at, pair.`left`, pair.`right`
    FOR UPDATE SKIP LOCKED;
UPDATE pair FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (pair.`left`, pair.`right`) IN (:sa_jobqueue_keys) AND CASE WHEN (pair.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- two columns of the key | mariadb | update_then_select
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SAVEPOINT sa_jobqueue_claim;
UPDATE pair FORCE INDEX (ix_pair_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair
    WHERE pair.status = 'claimed' AND pair.owner = :sa_jobqueue_owner AND pair.owner_date = :sa_jobqueue_owner_date
    ORDER BY pair.priority, pair.run_at, pair.`left`, pair.`right`;

-- two columns of the key | mariadb | held
SELECT pair.priority
    FROM pair
    WHERE pair.status = 'unclaimed'
    ORDER BY pair.priority LIMIT :param_1;
SELECT pair.`left`, pair.`right`, pair.status, pair.owner, pair.owner_date, pair.priority, pair.run_at
    FROM pair FORCE INDEX (ix_pair_claim)
    WHERE pair.status = 'unclaimed' AND pair.run_at <= UTC_TIMESTAMP(6) AND pair.priority = :sa_jobqueue_priority AND pair.run_at >= (SELECT min(sa_jobqueue_waiting.run_at) AS min_1
    FROM pair AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.priority = :sa_jobqueue_priority)
    ORDER BY pair.run_at, pair.`left`, pair.`right` LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- own words and order | sqlite | compare_and_set
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, (strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits) AS sa_jobqueue_date
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit OFFSET :param_1;
UPDATE message SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE message.id IN (SELECT sa_jobqueue_listed.value
    FROM json_each(:sa_jobqueue_keys) AS sa_jobqueue_listed) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE message SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE message.id = any(array((SELECT message.id
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF message SKIP LOCKED))) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1
    RETURNING message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.channel, sa_jobqueue_claimed.message_status, sa_jobqueue_claimed.sequence, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.sequence DESC, sa_jobqueue_claimed.id;

-- own words and order | postgresql | candidates
SELECT message.id
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, statement_timestamp() AS sa_jobqueue_date
    FROM message
    WHERE message.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id
    FOR NO KEY UPDATE OF message SKIP LOCKED;
UPDATE message SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE message.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | postgresql | held
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF message SKIP LOCKED;

-- own words and order | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT message.id AS sa_jobqueue_0, CAST(message.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (message.id BETWEEN -2147483648 AND 2147483647) THEN CAST(message.id AS INTEGER) ELSE hash_record(row(message.id)) END AS sa_jobqueue_2
    FROM message
    WHERE message.message_status = 'unsent' AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY message.sequence DESC, message.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message
    WHERE message.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND message.message_status = 'unsent';

-- own words and order | mysql | skip_locked
SELECT /*+ INDEX(message ix_message_claim) */ message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE message FORCE INDEX (PRIMARY) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (message.id IN :sa_jobqueue_keys) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | mysql | candidates
SELECT message.id
    FROM message IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM message FORCE INDEX (PRIMARY)
    WHERE (message.id IN :sa_jobqueue_keys) AND message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id
    FOR UPDATE SKIP LOCKED;
UPDATE message FORCE INDEX (PRIMARY) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (message.id IN :sa_jobqueue_keys) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE message FORCE INDEX (ix_message_claim) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message
    WHERE message.message_status = 'claimed' AND message.owner = :sa_jobqueue_owner AND message.owner_date = :sa_jobqueue_owner_date
    ORDER BY message.sequence DESC, message.id;

-- own words and order | mysql | held
SELECT /*+ INDEX(message ix_message_claim) */ message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- own words and order | mariadb | skip_locked
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM message FORCE INDEX (ix_message_claim)
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE message FORCE INDEX (PRIMARY) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (message.id IN :sa_jobqueue_keys) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | mariadb | candidates
SELECT message.id
    FROM message IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM message FORCE INDEX (PRIMARY)
    WHERE (message.id IN :sa_jobqueue_keys) AND message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id
    FOR UPDATE SKIP LOCKED;
UPDATE message FORCE INDEX (PRIMARY) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (message.id IN :sa_jobqueue_keys) AND CASE WHEN (message.message_status = 'unsent') THEN 1 ELSE 0 END = 1;

-- own words and order | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE message FORCE INDEX (ix_message_claim) SET message_status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit;
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message
    WHERE message.message_status = 'claimed' AND message.owner = :sa_jobqueue_owner AND message.owner_date = :sa_jobqueue_owner_date
    ORDER BY message.sequence DESC, message.id;

-- own words and order | mariadb | held
SELECT message.id, message.channel, message.message_status, message.sequence, message.owner, message.owner_date
    FROM message FORCE INDEX (ix_message_claim)
    WHERE message.message_status = 'unsent'
    ORDER BY message.sequence DESC, message.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a joined class | sqlite | compare_and_set
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, (strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits) AS sa_jobqueue_date
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed'
    ORDER BY animal.id LIMIT :sa_jobqueue_limit OFFSET :param_1;
UPDATE animal SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE animal.id IN (SELECT sa_jobqueue_listed.value
    FROM json_each(:sa_jobqueue_keys) AS sa_jobqueue_listed) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | postgresql | skip_locked
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, statement_timestamp() AS sa_jobqueue_date
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.status IN ('unclaimed', 'unclaimed')
    ORDER BY animal.status, animal.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF animal SKIP LOCKED;
UPDATE animal SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE animal.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | postgresql | candidates
SELECT dog.id
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.status IN ('unclaimed', 'unclaimed')
    ORDER BY animal.status, animal.id LIMIT :sa_jobqueue_limit;
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, statement_timestamp() AS sa_jobqueue_date
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND animal.status = 'unclaimed'
    ORDER BY animal.id
    FOR NO KEY UPDATE OF animal SKIP LOCKED;
UPDATE animal SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE animal.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | postgresql | held
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.status IN ('unclaimed', 'unclaimed')
    ORDER BY animal.status, animal.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF animal SKIP LOCKED;

-- a joined class | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT dog.id AS sa_jobqueue_0, CAST(animal.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (dog.id BETWEEN -2147483648 AND 2147483647) THEN CAST(dog.id AS INTEGER) ELSE hash_record(row(dog.id)) END AS sa_jobqueue_2
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.status IN ('unclaimed', 'unclaimed') AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY animal.status, animal.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick
    FROM animal JOIN dog ON animal.id = dog.id
    WHERE animal.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND animal.status = 'unclaimed';

-- a joined class | mysql | skip_locked
SELECT /*+ INDEX(animal ix_animal_claim) */ dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mysql | candidates
SELECT dog.id
    FROM animal IGNORE INDEX FOR ORDER BY (PRIMARY) INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed'
    ORDER BY animal.id LIMIT :sa_jobqueue_limit;
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal FORCE INDEX (PRIMARY) INNER JOIN dog ON animal.id = dog.id
    WHERE (animal.id IN :sa_jobqueue_keys) AND animal.status = 'unclaimed'
    ORDER BY animal.id
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mysql | update_then_select
SELECT /*+ INDEX(animal ix_animal_claim) */ dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mysql | held
SELECT /*+ INDEX(animal ix_animal_claim) */ dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick
    FROM animal INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a joined class | mariadb | skip_locked
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal FORCE INDEX (ix_animal_claim) INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mariadb | candidates
SELECT dog.id
    FROM animal IGNORE INDEX FOR ORDER BY (PRIMARY) INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed'
    ORDER BY animal.id LIMIT :sa_jobqueue_limit;
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal FORCE INDEX (PRIMARY) INNER JOIN dog ON animal.id = dog.id
    WHERE (animal.id IN :sa_jobqueue_keys) AND animal.status = 'unclaimed'
    ORDER BY animal.id
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mariadb | update_then_select
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM animal FORCE INDEX (ix_animal_claim) INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE animal FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (animal.id IN :sa_jobqueue_keys) AND CASE WHEN (animal.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a joined class | mariadb | held
SELECT dog.id, animal.id AS id_1, animal.kind, animal.status, animal.owner, animal.owner_date, dog.trick
    FROM animal FORCE INDEX (ix_animal_claim) INNER JOIN dog ON animal.id = dog.id
    WHERE animal.status = 'unclaimed' AND animal.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM animal AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY animal.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a region and a round | sqlite | compare_and_set
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE visit.id IN (SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, region, status, owner, owner_date, round;

-- a region and a round | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE visit.id = any(array((SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED))) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.region, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.round
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.round, sa_jobqueue_claimed.id;

-- a region and a round | postgresql | candidates
SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.round BETWEEN :round_1 AND :round_1 AND visit.region = :region_1 AND (visit.status, visit.round) >= ('unclaimed', :round_1)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, statement_timestamp() AS sa_jobqueue_date
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR NO KEY UPDATE OF visit SKIP LOCKED;
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region and a round | postgresql | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED;

-- a region and a round | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT visit.id AS sa_jobqueue_0, CAST(visit.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (visit.id BETWEEN -2147483648 AND 2147483647) THEN CAST(visit.id AS INTEGER) ELSE hash_record(row(visit.id)) END AS sa_jobqueue_2
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.round BETWEEN :round_1 AND :round_1 AND visit.region = :region_1 AND (visit.status, visit.round) >= ('unclaimed', :round_1) AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY visit.round, visit.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1;

-- a region and a round | mysql | skip_locked
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1 AND visit.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM visit AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.region = :region_2 AND sa_jobqueue_waiting.round = :round_2)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region and a round | mysql | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region and a round | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- a region and a round | mysql | held
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1 AND visit.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM visit AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.region = :region_2 AND sa_jobqueue_waiting.round = :round_2)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a region and a round | mariadb | skip_locked
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1 AND visit.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM visit AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.region = :region_2 AND sa_jobqueue_waiting.round = :round_2)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region and a round | mariadb | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region and a round | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- a region and a round | mariadb | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND visit.round = :round_1 AND visit.id >= (SELECT min(sa_jobqueue_waiting.id) AS min_1
    FROM visit AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed' AND sa_jobqueue_waiting.region = :region_2 AND sa_jobqueue_waiting.round = :round_2)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- all rounds of a region | sqlite | compare_and_set
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE visit.id IN (SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, region, status, owner, owner_date, round;

-- all rounds of a region | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE visit.id = any(array((SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED))) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.region, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.round
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.round, sa_jobqueue_claimed.id;

-- all rounds of a region | postgresql | candidates
SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, statement_timestamp() AS sa_jobqueue_date
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id
    FOR NO KEY UPDATE OF visit SKIP LOCKED;
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- all rounds of a region | postgresql | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED;

-- all rounds of a region | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT visit.id AS sa_jobqueue_0, CAST(visit.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (visit.id BETWEEN -2147483648 AND 2147483647) THEN CAST(visit.id AS INTEGER) ELSE hash_record(row(visit.id)) END AS sa_jobqueue_2
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1 AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY visit.round, visit.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = :region_1;

-- all rounds of a region | mysql | skip_locked
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- all rounds of a region | mysql | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- all rounds of a region | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- all rounds of a region | mysql | held
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- all rounds of a region | mariadb | skip_locked
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- all rounds of a region | mariadb | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- all rounds of a region | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- all rounds of a region | mariadb | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = :region_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a region that is no constant | sqlite | compare_and_set
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE visit.id IN (SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, region, status, owner, owner_date, round;

-- a region that is no constant | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE visit.id = any(array((SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED))) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.region, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date, sa_jobqueue_claimed.round
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.round, sa_jobqueue_claimed.id;

-- a region that is no constant | postgresql | candidates
SELECT visit.id
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.round BETWEEN :round_1 AND :round_1 AND visit.region = USER AND (visit.status, visit.round) >= ('unclaimed', :round_1)
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, statement_timestamp() AS sa_jobqueue_date
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR NO KEY UPDATE OF visit SKIP LOCKED;
UPDATE visit SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region that is no constant | postgresql | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF visit SKIP LOCKED;

-- a region that is no constant | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT visit.id AS sa_jobqueue_0, CAST(visit.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (visit.id BETWEEN -2147483648 AND 2147483647) THEN CAST(visit.id AS INTEGER) ELSE hash_record(row(visit.id)) END AS sa_jobqueue_2
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.round BETWEEN :round_1 AND :round_1 AND visit.region = USER AND (visit.status, visit.round) >= ('unclaimed', :round_1) AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY visit.round, visit.id LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1;

-- a region that is no constant | mysql | skip_locked
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region that is no constant | mysql | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region that is no constant | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- a region that is no constant | mysql | held
SELECT /*+ INDEX(visit ix_visit_claim) */ visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a region that is no constant | mariadb | skip_locked
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region that is no constant | mariadb | candidates
SELECT visit.id
    FROM visit IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM visit FORCE INDEX (PRIMARY)
    WHERE (visit.id IN :sa_jobqueue_keys) AND visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id
    FOR UPDATE SKIP LOCKED;
UPDATE visit FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (visit.id IN :sa_jobqueue_keys) AND CASE WHEN (visit.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a region that is no constant | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE visit FORCE INDEX (ix_visit_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit;
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit
    WHERE visit.status = 'claimed' AND visit.owner = :sa_jobqueue_owner AND visit.owner_date = :sa_jobqueue_owner_date
    ORDER BY visit.round, visit.id;

-- a region that is no constant | mariadb | held
SELECT visit.id, visit.region, visit.status, visit.owner, visit.owner_date, visit.round
    FROM visit FORCE INDEX (ix_visit_claim)
    WHERE visit.status = 'unclaimed' AND visit.region = USER AND visit.round = :round_1
    ORDER BY visit.round, visit.id LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- no primary key | sqlite | compare_and_set
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE ticket.number IN (SELECT ticket.number
    FROM ticket
    WHERE ticket.status = 'unclaimed'
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING number, status, owner, owner_date;

-- no primary key | postgresql | skip_locked
WITH sa_jobqueue_claimed AS (UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE ticket.number = any(array((SELECT ticket.number
    FROM ticket
    WHERE ticket.status IN ('unclaimed', 'unclaimed')
    ORDER BY ticket.status, ticket.number LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF ticket SKIP LOCKED))) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING ticket.number, ticket.status, ticket.owner, ticket.owner_date) SELECT sa_jobqueue_claimed.number, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.number;

-- no primary key | postgresql | candidates
SELECT ticket.number
    FROM ticket
    WHERE ticket.status IN ('unclaimed', 'unclaimed')
    ORDER BY ticket.status, ticket.number LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date, statement_timestamp() AS sa_jobqueue_date
    FROM ticket
    WHERE ticket.number = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND ticket.status = 'unclaimed'
    ORDER BY ticket.number
    FOR NO KEY UPDATE OF ticket SKIP LOCKED;
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE ticket.number = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- no primary key | postgresql | held
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket
    WHERE ticket.status IN ('unclaimed', 'unclaimed')
    ORDER BY ticket.status, ticket.number LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF ticket SKIP LOCKED;

-- no primary key | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT ticket.number AS sa_jobqueue_0, CAST(ticket.tableoid AS INTEGER) AS sa_jobqueue_1, CASE WHEN (ticket.number BETWEEN -2147483648 AND 2147483647) THEN CAST(ticket.number AS INTEGER) ELSE hash_record(row(ticket.number)) END AS sa_jobqueue_2
    FROM ticket
    WHERE ticket.status IN ('unclaimed', 'unclaimed') AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY ticket.status, ticket.number LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket
    WHERE ticket.number = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND ticket.status = 'unclaimed';

-- no primary key | mysql | skip_locked
SELECT /*+ INDEX(ticket ix_ticket_claim) */ ticket.number, ticket.status, ticket.owner, ticket.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM ticket
    WHERE ticket.status = 'unclaimed' AND ticket.number >= (SELECT min(sa_jobqueue_waiting.number) AS min_1
    FROM ticket AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (ticket.number IN :sa_jobqueue_keys) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- no primary key | mysql | candidates
SELECT ticket.number
    FROM ticket
    WHERE ticket.status = 'unclaimed'
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM ticket
    WHERE (ticket.number IN :sa_jobqueue_keys) AND ticket.status = 'unclaimed'
    ORDER BY ticket.number
    FOR UPDATE SKIP LOCKED;
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (ticket.number IN :sa_jobqueue_keys) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- no primary key | mysql | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE ticket FORCE INDEX (ix_ticket_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE ticket.status = 'unclaimed'
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket
    WHERE ticket.status = 'claimed' AND ticket.owner = :sa_jobqueue_owner AND ticket.owner_date = :sa_jobqueue_owner_date
    ORDER BY ticket.number;

-- no primary key | mysql | held
SELECT /*+ INDEX(ticket ix_ticket_claim) */ ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket
    WHERE ticket.status = 'unclaimed' AND ticket.number >= (SELECT min(sa_jobqueue_waiting.number) AS min_1
    FROM ticket AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- no primary key | mariadb | skip_locked
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM ticket FORCE INDEX (ix_ticket_claim)
    WHERE ticket.status = 'unclaimed' AND ticket.number >= (SELECT min(sa_jobqueue_waiting.number) AS min_1
    FROM ticket AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (ticket.number IN :sa_jobqueue_keys) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- no primary key | mariadb | candidates
SELECT ticket.number
    FROM ticket
    WHERE ticket.status = 'unclaimed'
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM ticket
    WHERE (ticket.number IN :sa_jobqueue_keys) AND ticket.status = 'unclaimed'
    ORDER BY ticket.number
    FOR UPDATE SKIP LOCKED;
UPDATE ticket SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (ticket.number IN :sa_jobqueue_keys) AND CASE WHEN (ticket.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- no primary key | mariadb | update_then_select
SAVEPOINT sa_jobqueue_claim;
UPDATE ticket FORCE INDEX (ix_ticket_claim) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=timestampadd(MICROSECOND, last_insert_id(timestampdiff(MICROSECOND, '1970-01-01', (UTC_TIMESTAMP(6) + INTERVAL :sa_jobqueue_later MICROSECOND))), '1970-01-01')
    WHERE ticket.status = 'unclaimed'
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit;
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket
    WHERE ticket.status = 'claimed' AND ticket.owner = :sa_jobqueue_owner AND ticket.owner_date = :sa_jobqueue_owner_date
    ORDER BY ticket.number;

-- no primary key | mariadb | held
SELECT ticket.number, ticket.status, ticket.owner, ticket.owner_date
    FROM ticket FORCE INDEX (ix_ticket_claim)
    WHERE ticket.status = 'unclaimed' AND ticket.number >= (SELECT min(sa_jobqueue_waiting.number) AS min_1
    FROM ticket AS sa_jobqueue_waiting
    WHERE sa_jobqueue_waiting.status = 'unclaimed')
    ORDER BY ticket.number LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- a queue with an order | sqlite | auto
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, (strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits) AS sa_jobqueue_date
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id LIMIT :sa_jobqueue_limit OFFSET :param_1;
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE email.id IN (SELECT sa_jobqueue_listed.value
    FROM json_each(:sa_jobqueue_keys) AS sa_jobqueue_listed) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a queue with an order | postgresql | auto
WITH sa_jobqueue_claimed AS (UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(SELECT clock_timestamp())
    WHERE email.id = any(array((SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF email SKIP LOCKED))) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1
    RETURNING email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date) SELECT sa_jobqueue_claimed.id, sa_jobqueue_claimed.recipient, sa_jobqueue_claimed.subject, sa_jobqueue_claimed.status, sa_jobqueue_claimed.owner, sa_jobqueue_claimed.owner_date
    FROM sa_jobqueue_claimed
    ORDER BY sa_jobqueue_claimed.recipient, sa_jobqueue_claimed.id;

-- a queue with an order | mysql | auto
SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- a queue with an order | mariadb | auto
SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id LIMIT :sa_jobqueue_limit;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed' AND email.recipient = :recipient_1
    ORDER BY email.recipient, email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- strict order | sqlite | auto
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=(strftime('%Y-%m-%d %H:%M:%f', 'now') || :sa_jobqueue_digits)
    WHERE email.id IN (SELECT email.id
    FROM email
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit OFFSET :param_1)
    RETURNING id, recipient, subject, status, owner, owner_date;

-- strict order | postgresql | auto
SELECT keeps_snapshot, set_config('lock_timeout', CASE own WHEN '0' THEN '50000' ELSE own END, true), CASE WHEN NOT keeps_snapshot THEN pg_advisory_xact_lock(7303, CAST(CAST(CAST('email' AS regclass) AS oid) AS integer)) END AS anon_1, set_config('lock_timeout', own, true)
    FROM (SELECT current_setting('lock_timeout') AS own, current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS keeps_snapshot OFFSET 0) AS sa_jobqueue_settings;
SELECT email.id
    FROM email
    WHERE email.status IN ('unclaimed', 'unclaimed')
    ORDER BY email.status, email.id LIMIT :sa_jobqueue_limit;
SELECT email.id
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR NO KEY UPDATE OF email SKIP LOCKED;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, statement_timestamp() AS sa_jobqueue_date
    FROM email
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR NO KEY UPDATE OF email SKIP LOCKED;
UPDATE email SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE email.id = ANY (CAST(:sa_jobqueue_keys AS BIGINT[])) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- strict order | mysql | auto
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- strict order | mariadb | auto
SELECT email.id
    FROM email IGNORE INDEX FOR ORDER BY (PRIMARY)
    WHERE email.status = 'unclaimed'
    ORDER BY email.id LIMIT :sa_jobqueue_limit;
SELECT email.id
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
SELECT email.id, email.recipient, email.subject, email.status, email.owner, email.owner_date, CAST(UTC_TIMESTAMP(6) AS CHAR(26)) AS sa_jobqueue_date
    FROM email FORCE INDEX (PRIMARY)
    WHERE (email.id IN :sa_jobqueue_keys) AND email.status = 'unclaimed'
    ORDER BY email.id
    FOR UPDATE SKIP LOCKED;
UPDATE email FORCE INDEX (PRIMARY) SET status='claimed', owner=:sa_jobqueue_owner, owner_date=:sa_jobqueue_owner_date
    WHERE (email.id IN :sa_jobqueue_keys) AND CASE WHEN (email.status = 'unclaimed') THEN 1 ELSE 0 END = 1;

-- any class | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT guest.name AS sa_jobqueue_0, CAST(guest.tableoid AS INTEGER) AS sa_jobqueue_1, hash_record(row(guest.name)) AS sa_jobqueue_2
    FROM guest
    WHERE guest.seats > :seats_1 AND current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END)) LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT guest.name, guest.seats
    FROM guest
    WHERE guest.name IN (:sa_jobqueue_keys) AND guest.seats > :seats_1;

-- any class in order | postgresql | advisory
SELECT sa_jobqueue_candidates.sa_jobqueue_0, sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2
    FROM (SELECT guest.name AS sa_jobqueue_0, CAST(guest.tableoid AS INTEGER) AS sa_jobqueue_1, hash_record(row(guest.name)) AS sa_jobqueue_2
    FROM guest
    WHERE current_setting(:current_setting_1) IN ('read committed', 'read uncommitted') AND (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END) = coalesce(:sa_jobqueue_backend, (SELECT CASE WHEN version() ~ 'PGlite' THEN 0 ELSE pg_backend_pid() END))
    ORDER BY guest.seats DESC, guest.name LIMIT ALL OFFSET 0) AS sa_jobqueue_candidates
    WHERE pg_try_advisory_lock(sa_jobqueue_candidates.sa_jobqueue_1, sa_jobqueue_candidates.sa_jobqueue_2) LIMIT :sa_jobqueue_limit;
SELECT guest.name, guest.seats
    FROM guest
    WHERE guest.name IN (:sa_jobqueue_keys);

-- any class | postgresql | held
SELECT guest.name, guest.seats
    FROM guest
    WHERE guest.seats > :seats_1 LIMIT :sa_jobqueue_limit
    FOR NO KEY UPDATE OF guest SKIP LOCKED;

-- any class | mysql | held
SELECT guest.name, guest.seats
    FROM guest
    WHERE guest.seats > :seats_1 LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;

-- any class | mariadb | held
SELECT guest.name, guest.seats
    FROM guest
    WHERE guest.seats > :seats_1 LIMIT :sa_jobqueue_limit
    FOR UPDATE SKIP LOCKED;
