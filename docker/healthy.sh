#!/bin/sh
# Exit code 0 when this container's Airflow component answers: healthy.sh api-server | worker | JOB TYPE
set -eu
case "$1" in
    api-server)
        exec python -c 'import urllib.request as u; u.urlopen("http://localhost:8080/api/v2/monitor/health", timeout=10)'
        ;;
    worker)
        exec celery --app airflow.providers.celery.executors.celery_executor.app \
            inspect ping --destination "celery@$(hostname)" --timeout 10
        ;;
    *)
        exec airflow jobs check --job-type "$1" --hostname "$(hostname)"
        ;;
esac
