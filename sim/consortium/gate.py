"""The gate: an nginx in front of the SuperLink that lets sites take and answer orders, and nothing else.

Open-source Flower has no user accounts, and one port serves the sites (``/v1/fleet/``), the ``flwr`` commands
(``/v1/control/``) and the ServerApp (``/v1/runtime/``): whoever reaches it can run code at every hospital. So the
SuperLink listens on the loopback alone, and the public port passes the ten calls that a registered site makes.
"""

import shutil
from pathlib import Path

from sim.consortium.members import Consortium

# flwr 1.41 superlink/routers/fleet/router.py, less register-node and unregister-node: sites are registered by the
# coordinator. A call that a later Flower adds is refused until someone has looked at it.
FLEET_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
LARGEST_CALL_MIB = 32  # Flower cuts arrays into objects of 5 MB

CONFIGURATION = """\
# Written by `fedsmall server up`; changes here are lost.
worker_processes 1;
daemon off;
pid {work}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    server_tokens off;
    log_format gate '$time_iso8601 $remote_addr $request_method $uri $status $request_length $bytes_sent';
    access_log {access_log} gate;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    server {{
        listen {listen} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sites:1m;
        client_max_body_size {largest}m;
        location ~ ^/v1/fleet/({calls})$ {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{upstream};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_ssl_trusted_certificate {authority};
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_session_reuse on;
            proxy_read_timeout 120s;
        }}
        location / {{ return 403; }}
    }}
}}
"""


def configuration(record: Consortium, folder: Path, *, upstream: str | None = None, access_log: str = "") -> str:
    """The gate's nginx configuration; ``upstream`` is the SuperLink's host and port, the loopback by default."""
    work = (folder / "gate").absolute()
    return CONFIGURATION.format(
        work=work,
        access_log=access_log or (folder / "log" / "gate-access.log").absolute(),
        listen=f"{record.listen}:{record.port}",
        certificate=(folder / "server" / "server.crt").absolute(),
        key=(folder / "server" / "server.key").absolute(),
        authority=(folder / "ca" / "ca.crt").absolute(),
        calls="|".join(FLEET_CALLS),
        upstream=upstream or record.inner_address,
        largest=LARGEST_CALL_MIB,
    )


def write(record: Consortium, folder: Path, **settings: str) -> Path:
    """Write the configuration into ``folder/gate`` and return its path."""
    (folder / "gate").mkdir(mode=0o700, exist_ok=True)
    path = folder / "gate" / "nginx.conf"
    path.write_text(configuration(record, folder, **settings))
    return path


def command(configuration_path: Path) -> list[str]:
    """The command that runs the gate; raises ValueError where nginx is not installed."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    if nginx is None:
        raise ValueError("the gate needs nginx (Debian: apt install nginx-light); or use the compose file in docker/")
    work = str(configuration_path.parent.absolute())
    return [nginx, "-e", "stderr", "-p", work, "-c", str(configuration_path.absolute())]
