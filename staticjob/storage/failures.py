"""What an exception of boto3 means to a user: which class of error, in which words."""

from __future__ import annotations

from collections.abc import Callable

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError as TransportError

from staticjob.errors import ConfigError, DataError, InfrastructureError, StaticJobError

TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504, 507, 509}
TRANSIENT_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "PriorRequestNotComplete",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
# A HEAD has no body to carry a code: S3 answers an expired token there with a bare 400.
EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "400"}
MISSING_CODES = {"NoSuchKey", "404", "NotFound"}
CHANGED_CODES = {"PreconditionFailed", "412"}
NETWORK = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    TransportError,
    ConnectionError,
    TimeoutError,
)
SETTINGS = (
    boto.ConfigNotFound,
    boto.ConfigParseError,
    boto.InvalidConfigError,
    boto.InvalidRegionError,
    boto.ParamValidationError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
)


def code_of(error: Exception) -> str:
    """The store's code of a refused request; '' for any other exception."""
    if isinstance(error, boto.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def status_of(error: Exception) -> int:
    """The HTTP status of a refused request; 0 for any other exception."""
    if isinstance(error, boto.ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return 0


def is_missing(error: Exception) -> bool:
    return code_of(error) in MISSING_CODES


def is_changed(error: Exception) -> bool:
    """A condition (If-Match, If-None-Match) of the request did not hold."""
    return code_of(error) in CHANGED_CODES


def is_expired(error: Exception) -> bool:
    """The credentials were good once; new ones may be at hand."""
    return code_of(error) in EXPIRED_CODES


def is_transient(error: Exception) -> bool:
    """The same request may succeed a little later."""
    if isinstance(error, boto.SSLError):
        return False
    return (
        isinstance(error, NETWORK)
        or status_of(error) in TRANSIENT_STATUS
        or code_of(error) in TRANSIENT_CODES
    )


def _answered(*codes: str) -> Callable[[Exception], bool]:
    return lambda error: code_of(error) in codes


def _raised(*classes: type[Exception]) -> Callable[[Exception], bool]:
    return lambda error: isinstance(error, classes)


# The first rule whose test holds names the class and the words; {code} and {line} are filled in.
RULES: tuple[tuple[Callable[[Exception], bool], type[StaticJobError], str], ...] = (
    (_answered("NoSuchBucket"), ConfigError, "the bucket does not exist; create it or correct the URI"),
    (is_missing, DataError, "there is no such object"),
    (
        _raised(boto.NoCredentialsError),
        ConfigError,
        "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role; "
        "under Airflow airflow.aws_conn_id",
    ),
    (_raised(*SETTINGS), ConfigError, "{line}; correct the URI or the AWS settings"),
    (_raised(boto.SSLError), ConfigError, "{line}; check the store's certificate and AWS_CA_BUNDLE"),
    (
        is_expired,
        InfrastructureError,
        "the credentials have expired; renew them and run again (finished work is kept)",
    ),
    (_raised(boto.CredentialRetrievalError), InfrastructureError, "{line}; run again when they can be had"),
    (
        _answered("InvalidAccessKeyId", "SignatureDoesNotMatch"),
        ConfigError,
        "the credentials were refused ({code}); check access key and secret",
    ),
    (
        lambda error: status_of(error) == 403,
        ConfigError,
        "access denied ({code}); check the credentials and the bucket's policy",
    ),
    (
        _answered("NotImplemented"),
        ConfigError,
        "the store does not offer what is needed ({line}); use one with conditional puts",
    ),
    (
        _raised(*NETWORK),
        InfrastructureError,
        "{line}; check network and AWS_ENDPOINT_URL, then run again",
    ),
    (is_transient, InfrastructureError, "the store is busy or failing ({line}); run again later"),
)


def explain(error: Exception, uri: str, doing: str) -> StaticJobError:
    """One line for `error`, met while `doing` (read, write, list, …) the object `uri`."""
    line = " ".join(str(error).split())
    for test, kind, words in RULES:
        if test(error):
            return kind(f"cannot {doing} {uri}: " + words.format(code=code_of(error), line=line))
    return InfrastructureError(f"cannot {doing} {uri}: {line}")
