"""What servers say about themselves: which of them is another product."""

from __future__ import annotations

import pytest

# Inner: a rule about texts of servers that no test has.
from sa_jobqueue.databases import look_alike

OF_POSTGRESQL = {
    "PostgreSQL 15.12-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu, compiled by clang": "YugabyteDB",
    "PostgreSQL 14.4 (Cloudberry Database 1.6.0 build dev) on x86_64-pc-linux-gnu": "Cloudberry",
    "PostgreSQL 13.14.0-RisingWave-2.0.0 (c4c7f5d)": "RisingWave",
    "PostgreSQL 13.3, compiled by Visual C++ build 1914, 64-bit, QuestDB": "QuestDB",
    "PostgreSQL 18.6 (PGlite 0.5.14) on wasm32-unknown-emscripten, compiled by emcc": "PGlite",
    "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27)": "CockroachDB",
    "PostgreSQL 16.1-Unheard-3.2 on x86_64-pc-linux-gnu": "Unheard",
}

OF_MYSQL = {
    ("8.0.11-TiDB-v8.5.6", "TiDB Server (Apache License 2.0) Community Edition"): "TiDB",
    ("8.4.0", "TiDB Server (Apache License 2.0) Enterprise Edition"): "TiDB",
    ("8.0.33", "Dolt"): "Dolt",
    ("8.0.33-Dolt", ""): "Dolt",
    ("5.7.25-OceanBase_CE-v4.4.2.1", "OceanBase_CE 4.4.2.1 (r101)"): "OceanBase",
    ("5.7.32", "SingleStoreDB source distribution (compatible; MySQL Enterprise)"): "SingleStore",
    ("5.7.9-vitess-12.0.0", "Version: 12.0.0"): "Vitess",
    ("5.7.25-TDDL-5.4.13", "Tddl Server"): "PolarDB-X",
    ("8.0.30-Unheard-v1.2", "Source distribution"): "Unheard",
}

GENUINE = [
    ("PostgreSQL 15.20 (Debian 15.20-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc 12",),
    ("PostgreSQL 16.0 (Ubuntu 16.0-1.pgdg20.04+1) on aarch64-unknown-linux-gnu, 64-bit",),
    ("PostgreSQL 14.7 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 7.3.1-20180712 (Red Hat 7.3)",),
    ("PostgreSQL 16.3 (Postgres.app) on aarch64-apple-darwin21.6.0, clang-1400.0.29.102",),
    ("PostgreSQL 14.4 on x86_64-pc-linux-gnu, compiled by Debian clang version 12.0.1, 64-bit",),
    ("PostgreSQL 15.1, compiled by Visual C++ build 1914, 64-bit",),
    ("PostgreSQL 14.2 (EnterpriseDB Advanced Server 14.2.1) on x86_64-pc-linux-gnu",),
    ("PostgreSQL 16.4 - Percona Distribution on x86_64-pc-linux-gnu, compiled by gcc",),
    ("PostgreSQL 18beta1 on x86_64-pc-linux-gnu",),
    ("9.7.4", "(Debian)"),
    ("8.0.36-0ubuntu0.22.04.1", "(Ubuntu)"),
    ("8.4.0-debug", "Source distribution"),
    ("8.0.31-google", "(Google)"),
    ("8.0.28", "Source distribution"),
    ("8.0.mysql_aurora.3.04.0", "MySQL Community Server (GPL)"),
    ("5.7.44-rds.20240408-log", "Source distribution"),
    ("8.0.34-azure", "MySQL Community Server (GPL)"),
    ("8.0.35-27.1", "Percona XtraDB Cluster (GPL), Release rel27, Revision 1db7fc3, WSREP 26.1.4"),
    ("5.7.23-23-57-log", "Percona Server (GPL), Release 23"),
    ("10.11.19-MariaDB-0+deb12u1", "Debian 12"),
    ("10.6.12-MariaDB-1:10.6.12+maria~ubu2004-log", "mariadb.org binary distribution"),
    ("5.5.5-10.4.12-MariaDB", "managed by https://aws.amazon.com/rds/"),
    ("10.6.16-11-MariaDB-enterprise", "MariaDB Enterprise Server"),
]


@pytest.mark.parametrize(
    ("told", "product"),
    [
        *(((told,), product) for told, product in OF_POSTGRESQL.items()),
        *OF_MYSQL.items(),
        *((told, None) for told in GENUINE),
    ],
)
def test_look_alikes_are_named_and_packages_forks_and_services_with_the_true_locks_are_not(
    told: tuple[str, ...], product: str | None
) -> None:
    assert look_alike(told) == product
