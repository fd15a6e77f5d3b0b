"""Schemathesis makes up requests from the OpenAPI document and holds the answers to it: no 5xx, no
status, type, header or body that the document does not tell."""

import hypothesis
import pytest

from server.api_docs import api_document

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]

OPERATIONS = [
    (method, path) for path, operations in api_document()["paths"].items() for method in operations
]


@pytest.fixture(scope="session")
def schemathesis():
    import schemathesis  # here, because only `make test-clients` installs it

    return schemathesis


@pytest.fixture(scope="session")
def document(schemathesis, base_url):
    return schemathesis.openapi.from_url(f"{base_url}/openapi.json")


def is_queue_timeout(response):
    return response.status_code == 503 and response.json()["error"]["code"] == "queue_timeout"


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value)
def test_no_answer_is_outside_the_document(schemathesis, document, method, path):
    checks = schemathesis.checks
    openapi = schemathesis.specs.openapi.checks
    operation = document[path][method]

    @hypothesis.settings(
        max_examples=100,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy())
    def ask(case):
        response = case.call()
        wanted = [
            openapi.status_code_conformance,
            openapi.content_type_conformance,
            openapi.response_headers_conformance,
            openapi.response_schema_conformance,
        ]
        # Whoever asks for an answer within no time at all is told 503, and rightly so.
        if not is_queue_timeout(response):
            wanted.append(checks.not_a_server_error)
        case.validate_response(response, checks=wanted)

    ask()
