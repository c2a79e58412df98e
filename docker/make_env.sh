#!/usr/bin/env bash
# Prints the secrets that compose.yaml needs, made anew:
#   (umask 077 && docker/make_env.sh > docker/.env)
set -euo pipefail
exec python3 - <<'END'
import base64, os, secrets

NAMES = "POSTGRES_PASSWORD REDIS_PASSWORD S3_ACCESS_KEY S3_SECRET_KEY API_SECRET_KEY JWT_SECRET AIRFLOW_ADMIN_PASSWORD"
for name in NAMES.split():
    print(f"{name}={secrets.token_urlsafe(24)}")
print(f"FERNET_KEY={base64.urlsafe_b64encode(os.urandom(32)).decode()}")
END
