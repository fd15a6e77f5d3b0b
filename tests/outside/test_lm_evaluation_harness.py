"""lm-evaluation-harness scores a task through the server as through transformers."""

import json

import pytest

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]

DOCUMENTS = [
    {"question": "The quick brown fox", "choices": [" jumps over", " says hello"], "answer": 0},
    {"question": "hello world, this is", "choices": [" what", " the lazy dog. one"], "answer": 1},
    {"question": "a message begins", "choices": [", a message ends", " done"], "answer": 0},
]


@pytest.fixture
def task(tmp_path):
    """A multiple-choice task over three documents, as a user would write one."""
    data = tmp_path / "documents.json"
    data.write_text("\n".join(json.dumps(document) for document in DOCUMENTS))
    return {
        "task": "tiny_choices",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }


def evaluate(model, arguments, task):
    """The log-likelihoods of all choices of all documents, and the accuracy."""
    import lm_eval  # here, because only `make test-clients` installs it

    results = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=[task], log_samples=True, bootstrap_iters=0
    )
    samples = sorted(results["samples"]["tiny_choices"], key=lambda sample: sample["doc_id"])
    likelihoods = [float(pair[0]) for sample in samples for pair in sample["filtered_resps"]]
    return likelihoods, results["results"]["tiny_choices"]["acc,none"]


def test_log_likelihoods_equal_those_of_transformers(base_url, folder, task, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ours = evaluate(
        "local-completions",
        {
            "model": "tiny",
            "base_url": f"{base_url}/v1/completions",
            "tokenizer": str(folder),
            "tokenizer_backend": "huggingface",
            "max_length": 256,
            "num_concurrent": 2,
        },
        dict(task),
    )
    theirs = evaluate(
        "hf", {"pretrained": str(folder), "device": "cpu", "dtype": "float32"}, dict(task)
    )
    assert len(ours[0]) == 2 * len(DOCUMENTS)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-3)
    assert ours[1] == theirs[1]
