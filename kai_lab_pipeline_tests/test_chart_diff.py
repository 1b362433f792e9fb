"""Charts compared: dead values, CRDs, images, resources and effects; from archives, and rendered."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kai_lab_pipeline.clients.chart_archive import read_chart
from kai_lab_pipeline.lab.chart_diff import Change, ChartContents, ValueFate, compare_charts
from kai_lab_pipeline.lab.chart_facts import effects_of, split_key, value_keys
from kai_lab_pipeline.lab.chart_values import judge_values
from kai_lab_pipeline.lab.errors import LabError
from kai_lab_pipeline.lab.verdict import Verdict
from kai_lab_pipeline.rehearsal.registry_charts import CHARTS, KAI_REPOSITORY, NVML_MOCK_REPOSITORY, ChartSource
from kai_lab_pipeline.settings import load_settings

ROOT = Path(__file__).parent.parent
OURS = {"global.gpuSharing": True, "binder.plugins.hamicore.enabled": True}
CONFIG = """
apiVersion: kai.scheduler/v1
kind: Config
metadata: {name: kai-config}
spec:
  admission: {gpuSharing: true}
  binder: {plugins: {hamicore: {enabled: true}}}
"""


def deployment(name: str, image: str, *args: str) -> dict[str, Any]:
    labels = {"app": name, "helm.sh/chart": f"kai-scheduler-{image.rpartition(':')[2]}"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "kai-scheduler", "labels": labels},
        "spec": {"template": {"spec": {"containers": [{"name": name, "image": image, "args": list(args)}]}}},
    }


def chart(version: str, values: dict[str, Any], *objects: dict[str, Any], **fields: Any) -> ChartContents:
    return ChartContents("kai-scheduler", version, values, objects=objects, **fields)


VALUES: dict[str, Any] = {
    "global": {"gpuSharing": False, "tag": ""},
    "binder": {"plugins": {"hamicore": {"enabled": False}}},
}


def test_equal_charts_do_not_differ() -> None:
    one = chart("v0.17.0", VALUES, deployment("binder", "r/binder:v0.17.0"))
    two = chart("v0.17.1", copy.deepcopy(VALUES), deployment("binder", "r/binder:v0.17.0"))
    diff = compare_charts(one, two, OURS)
    assert diff.empty
    assert diff.text() == "kai-scheduler v0.17.0 -> v0.17.1\nNo difference."


def test_a_value_that_no_longer_exists_is_dead_and_its_successor_guessed() -> None:
    renamed = {"global": {"gpuSharingMode": "NonMemoryEnforced", "tag": ""}, "binder": {"replicas": 1}}
    diff = compare_charts(chart("v0.17.0", VALUES), chart("v0.19.0", renamed), OURS)
    assert [(one.key, one.fate) for one in diff.dead_values] == [
        ("global.gpuSharing", ValueFate.GONE),
        ("binder.plugins.hamicore.enabled", ValueFate.GONE),
    ]
    assert diff.values[0].similar == ("global.gpuSharingMode",)
    assert "! global.gpuSharing no longer exists: helm accepts it and it has no effect." in diff.text()
    assert '+ global.gpuSharingMode: "NonMemoryEnforced"' in diff.text()
    assert "- binder.plugins.hamicore.enabled: false" in diff.text()


TEMPLATE = "gpuSharing: {{ .Values.global.gpuSharing }}"


def test_a_mistyped_value_is_dead_where_no_template_reads_it() -> None:
    ours = {"global.gpusharing": True}
    diff = compare_charts(chart("a", VALUES), chart("b", VALUES, templates=TEMPLATE), ours)
    assert [(one.fate, one.similar) for one in diff.dead_values] == [(ValueFate.NEVER_THERE, ("global.gpuSharing",))]
    finding = judge_values(diff, ours)
    assert (finding.verdict, finding.observed) == (Verdict.BROKEN, "no effect in kai-scheduler b: global.gpusharing")
    assert finding.message == (
        "global.gpusharing is known neither in kai-scheduler b nor in the pinned version: helm accepts it and it has no"
        " effect. The nearest key there is global.gpuSharing."
    )


def test_a_value_in_no_defaults_cannot_be_judged_without_templates() -> None:
    ours = {"global.gpusharing": True}
    diff = compare_charts(chart("a", VALUES), chart("b", VALUES), ours)
    assert [(one.fate, one.similar) for one in diff.values] == [(ValueFate.UNREAD, ("global.gpuSharing",))]
    assert diff.dead_values == ()
    finding = judge_values(diff, ours)
    assert (finding.verdict, finding.observed, finding.transient) == (
        Verdict.NOT_EVALUATED,
        "no default and no template to read: global.gpusharing",
        False,
    )


def test_a_value_that_only_the_pinned_templates_read_is_gone() -> None:
    pinned = chart("a", {}, templates="{{ .Values.log.level }}")
    diff = compare_charts(pinned, chart("b", {}, templates="{{ .Values.log.depth }}"), {"log.level": 3})
    assert [one.fate for one in diff.dead_values] == [ValueFate.GONE]


def test_a_value_below_a_part_without_a_default_that_a_template_reads_whole_is_alive() -> None:
    ours = {"binder.resources.limits.cpu": "1"}
    whole = "{{- with .Values.binder.resources }}{{ toYaml . }}{{ end }}"
    diff = compare_charts(chart("a", VALUES), chart("b", VALUES, templates=whole), ours)
    assert [one.fate for one in diff.values] == [ValueFate.DEPRECATED]
    finding = judge_values(diff, ours)
    assert finding.verdict is Verdict.HELD
    assert finding.observed == "binder.resources.limits.cpu has no default and is read by the templates"


def test_what_was_seen_of_living_values_is_said_as_it_is() -> None:
    there = compare_charts(chart("a", VALUES), chart("b", VALUES, templates=TEMPLATE), OURS)
    assert judge_values(there, OURS).observed == "every key is there"
    ours = {"nodeSelector.zone": "a"}
    free = compare_charts(chart("a", {"nodeSelector": {}}), chart("b", {"nodeSelector": {}}), ours)
    assert judge_values(free, ours).verdict is Verdict.HELD
    assert judge_values(free, ours).observed == "nodeSelector.zone is below a part that the chart leaves free"


def test_a_subcharts_value_is_read_by_the_subcharts_own_templates() -> None:
    ours = {"sub.level": 3}
    diff = compare_charts(chart("a", VALUES), chart("b", {"sub": {"x": 1}}, templates="{{ .Values.level }}"), ours)
    assert diff.dead_values == ()


def test_free_parts_and_other_types_are_said() -> None:
    pinned = {"nodeSelector": {}, "gpu": {"count": 8}, "monitor": {"enabled": False}}
    new = {"nodeSelector": None, "gpu": {"count": {"min": 1}}, "monitor": {"enabled": True}}
    ours = {"nodeSelector.zone": "a", "gpu.count": 8, "monitor.enabled": True}
    diff = compare_charts(chart("a", pinned), chart("b", new), ours)
    assert [(one.key, one.fate) for one in diff.values] == [
        ("nodeSelector.zone", ValueFate.OPEN),
        ("gpu.count", ValueFate.OTHER_TYPE),
    ]
    assert [one.key for one in diff.dead_values] == ["gpu.count"]


@pytest.mark.parametrize(
    ("template", "fate"),
    [
        ("gpuSharing: {{ .Values.global.gpuSharing | default false }}", ValueFate.DEPRECATED),
        ('{{- if hasKey .Values.global "gpuSharing" }}', ValueFate.DEPRECATED),
        ("gpuSharing: {{ .Values.global.gpuSharingMode }}", ValueFate.GONE),
        ("gpuSharing: true", ValueFate.GONE),
    ],
)
def test_a_value_that_templates_still_read_is_not_dead(template: str, fate: ValueFate) -> None:
    new = chart("v0.18.0", {"global": {"gpuSharingMode": ""}}, templates=template)
    diff = compare_charts(chart("v0.17.0", VALUES), new, {"global.gpuSharing": True})
    assert [one.fate for one in diff.values] == [fate]
    assert len(diff.dead_values) == (fate is ValueFate.GONE)


def test_a_chart_without_any_values_has_no_free_part() -> None:
    diff = compare_charts(chart("a", {}), chart("b", {}, templates="{{ .Values.y }}"), {"x": 1})
    assert [one.fate for one in diff.values] == [ValueFate.NEVER_THERE]


def test_a_null_default_is_there() -> None:
    diff = compare_charts(chart("a", VALUES), chart("b", {**VALUES, "global": {"gpuSharing": None}}), OURS)
    assert diff.values == ()


def test_images_resources_and_effects() -> None:
    old = chart(
        "v0.17.0",
        VALUES,
        deployment("binder", "r/binder:v0.17.0", "--plugins", '{"hamicore":{}}', "--v=3"),
        deployment("admission", "r/admission:v0.17.0", "--gpu-sharing-enabled=true", "--hami-core-enabled"),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "old"}},
    )
    new = chart(
        "v0.18.0",
        VALUES,
        deployment("binder", "r/binder:v0.18.0", "--v=3"),
        deployment("admission", "r/admission:v0.18.0", "--gpu-sharing-enabled=false", "--hami-core-enabled"),
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "binder"}},
    )
    diff = compare_charts(old, new, OURS)
    assert diff.images == (
        Change("Deployment admission/admission", "r/admission:v0.17.0", "r/admission:v0.18.0"),
        Change("Deployment binder/binder", "r/binder:v0.17.0", "r/binder:v0.18.0"),
    )
    assert [change.line() for change in diff.resources] == ["+ PodDisruptionBudget binder", "- ServiceAccount old"]
    assert diff.lost_effects == (
        Change("Deployment admission/admission --gpu-sharing-enabled", "true", "false"),
        Change("Deployment binder/binder --plugins", '{"hamicore":{}}', None),
    )
    assert "~ Deployment admission/admission --gpu-sharing-enabled: true -> false" in diff.text()
    assert "-        - --plugins" in diff.texts["Deployment kai-scheduler/binder"]
    assert "helm.sh/chart" not in diff.text()


def test_kais_config_is_found_as_object_and_in_a_hooks_configmap() -> None:
    wrapped = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"config.yaml": CONFIG}}
    plain = yaml.safe_load(CONFIG)
    assert effects_of([wrapped]) == effects_of([plain])
    assert effects_of([plain]) == {
        "Config kai-config admission.gpuSharing": "true",
        "Config kai-config binder.plugins.hamicore.enabled": "true",
    }
    broken = {"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "kind: Config\n\t: {", "b": 7}}
    assert effects_of([broken]) == {}


def test_an_object_may_move_to_another_api_version() -> None:
    old = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    new = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}
    diff = compare_charts(chart("a", {}, old), chart("b", {}, new), {})
    assert diff.resources == ()
    assert "+apiVersion: policy/v1" in diff.texts["PodDisruptionBudget b"]


def test_secrets_and_certificates_are_not_compared() -> None:
    def objects(word: str) -> list[dict[str, Any]]:
        return [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "data": {"tls.key": word}},
            {
                "apiVersion": "v1",
                "kind": "X",
                "metadata": {"name": "w"},
                "webhooks": [{"clientConfig": {"caBundle": word}}],
            },
        ]

    diff = compare_charts(chart("a", {}, *objects("c2VjcmV0")), chart("b", {}, *objects("b3RoZXI=")), {})
    assert diff.empty


def test_without_rendering_the_difference_says_so() -> None:
    pinned = ChartContents("kai-scheduler", "a", VALUES)
    diff = compare_charts(pinned, chart("b", VALUES, deployment("binder", "r/b:1")), OURS)
    assert not diff.rendered
    assert (diff.images, diff.resources, diff.effects) == ((), (), ())
    assert "Not rendered (no helm at hand): images, resources and effects are not_evaluated" in diff.text()
    refused = ChartContents("kai-scheduler", "b", VALUES, unrendered="helm could not render it: unknown profile")
    assert (
        "Not rendered (helm could not render it: unknown profile)"
        in compare_charts(chart("a", VALUES), refused, OURS).text()
    )


def test_the_version_itself_is_no_difference_in_an_object() -> None:
    """Each image and each MS_TAG carries it; what else changed would be lost among them."""

    def objects(version: str, level: str) -> dict[str, Any]:
        made = deployment("operator", f"r/operator:{version}", f"--level={level}")
        made["metadata"]["annotations"] = {"tag": version}
        return made

    same = compare_charts(
        chart("v0.17.0", {}, objects("v0.17.0", "1")), chart("v0.18.2", {}, objects("v0.18.2", "1")), {}
    )
    assert same.texts == {}
    assert [change.after for change in same.images] == ["r/operator:v0.18.2"]
    diff = compare_charts(
        chart("v0.17.0", {}, objects("v0.17.0", "1")), chart("v0.18.2", {}, objects("v0.18.2", "2")), {}
    )
    [text] = diff.texts.values()
    changed = [line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line[-9:] for line in changed] == ["--level=1", "--level=2"]


@pytest.mark.parametrize("text", ["kind: Config\napiVersion: kai.scheduler/v1\n{spec}", '{{"kind":"Config",{json}}}'])
def test_a_config_that_a_hook_gets_in_its_environment_is_looked_into(text: str) -> None:
    spec = {"admission": {"gpuSharing": False}}
    plain = {"apiVersion": "kai.scheduler/v1", "metadata": {"name": "kai-config"}, "spec": spec}
    value = text.format(spec=f"metadata: {{name: kai-config}}\nspec: {json.dumps(spec)}", json=json.dumps(plain)[1:-1])
    job = deployment("kai-config-deployer", "r/crd-upgrader:v0.17.0")
    job["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "KAI_CONFIG", "value": value}]
    assert effects_of([job]) == {"Config kai-config admission.gpuSharing": "false"}


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("global.gpuSharing", "global.gpuSharingMode"),
        ("binder.plugins.hamicore.enabled", "binder.plugins.hamiCore.on"),
        ("nothing.alike", "binder.plugins.hamiCore.on"),
    ],
)
def test_the_nearest_key_is_always_named(key: str, nearest: str) -> None:
    there = {"global": {"gpuSharingMode": "", "tag": ""}, "binder": {"plugins": {"hamiCore": {"on": False}}}}
    pinned = chart("a", {key.partition(".")[0]: {}})
    [problem] = compare_charts(pinned, chart("b", there), {key: True}).values
    assert problem.nearest == nearest
    finding = judge_values(compare_charts(chart("a", _tree(key)), chart("b", there), {key: True}), {key: True})
    assert finding.verdict is Verdict.BROKEN
    assert f"{key} no longer exists in kai-scheduler b" in finding.message
    assert f"The nearest key there is {nearest}." in finding.message


def _tree(key: str) -> dict[str, Any]:
    tree: Any = False
    for part in reversed(key.split(".")):
        tree = {part: tree}
    return dict(tree)


def test_kubernetes_versions_and_long_objects() -> None:
    def long(first: str) -> dict[str, Any]:
        data = {str(n): "a" for n in range(900)} | {"1": first}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}

    diff = compare_charts(chart("a", {}, long("a")), chart("b", {}, long("b"), kube_version=">=1.33"), {})
    assert "too long to show" in diff.texts["ConfigMap c"]
    assert "+ Kubernetes versions accepted: >=1.33" in diff.text()
    assert json.loads(json.dumps(diff.to_json()))["other"][0]["after"] == ">=1.33"


def test_keys_as_helm_writes_them() -> None:
    assert split_key("a.b\\.c.d") == ("a", "b.c", "d")
    assert split_key("list[0].name") == ("list", "0", "name")
    assert value_keys({"a": {"b.c": 1, "d": {}}, "e": [1]}) == {"a.b\\.c": "1", "a.d": "{}", "e": "[1]"}
    pinned = {"a": {"b.c": 1}, "list": [{"name": "x"}]}
    ours = {"a.b\\.c": 2, "list[0].name": "y"}
    assert compare_charts(chart("a", pinned), chart("b", pinned), ours).values == ()


def packed(tmp_path: Path, source: ChartSource) -> Path:
    path = tmp_path / f"{source.name}-{source.version}.tgz"
    path.write_bytes(source.archive())
    return path


def by_version(repository: str, version: str) -> ChartSource:
    return next(one for one in CHARTS[repository] if one.version == version)


@pytest.mark.parametrize(("version", "dead"), [("v0.16.8", 0), ("v0.18.2", 0), ("v0.19.0", 2), ("v0.20.1", 1)])
def test_the_rehearsals_kai_versions_kill_the_values_they_really_kill(tmp_path: Path, version: str, dead: int) -> None:
    settings = load_settings(ROOT, environ={})
    pinned = read_chart(packed(tmp_path, by_version(KAI_REPOSITORY, "v0.17.0")))
    new = read_chart(packed(tmp_path, by_version(KAI_REPOSITORY, version)))
    diff = compare_charts(pinned, new, settings.charts.kai_scheduler.values)
    assert len(diff.dead_values) == len(diff.values) == dead
    assert not diff.rendered
    crds = {change.name: change.after for change in diff.crds}
    expected = {"bindrequests.scheduling.run.ai": "v1alpha2, v1alpha3*"} if version in ("v0.18.2", "v0.19.0") else {}
    assert crds == expected


def test_nvml_mocks_new_default_profile_is_in_the_difference(tmp_path: Path) -> None:
    pinned = read_chart(packed(tmp_path, by_version(NVML_MOCK_REPOSITORY, "0.3.0")))
    diff = compare_charts(pinned, read_chart(packed(tmp_path, by_version(NVML_MOCK_REPOSITORY, "0.4.0"))), {})
    assert '~ gpu.profile: "a100" -> "gb300"' in diff.text()


def test_folders_and_subcharts_are_read(tmp_path: Path) -> None:
    root = tmp_path / "chart"
    for name, text in {
        "Chart.yaml": "name: top\nversion: 1.0.0\nkubeVersion: '>=1.31'\n",
        "values.yaml": "sub: {enabled: true}\n",
        "crds/a.yaml": "kind: CustomResourceDefinition\nmetadata: {name: a.b}\n---\n",
        "charts/sub/Chart.yaml": "name: sub\n",
        "charts/sub/values.yaml": "enabled: false\nlevel: 3\n",
        "templates/notes.yaml": "{{ this is no yaml",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = read_chart(root)
    assert (found.name, found.kube_version) == ("top", ">=1.31")
    assert found.values == {"sub": {"enabled": True, "level": 3}}
    assert [one["metadata"]["name"] for one in found.crds] == ["a.b"]
    assert "this is no yaml" in found.templates


def tar_of(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content) if kind == tarfile.REGTYPE else 0
        member.type = kind
        member.linkname = "/etc/hostname"
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"no archive", "cannot be read"),
        (gzip.compress(b"no tar"), "cannot be read"),
        (tar_of("top/README.md", b"x"), "no Chart.yaml"),
        (tar_of("top/Chart.yaml", b"a: ["), "cannot be read"),
        (tar_of("top/Chart.yaml", b"\xff\xfe\xfa"), "cannot be read"),
        (tar_of("top/Chart.yaml", b"", tarfile.SYMTYPE), "no Chart.yaml"),
        (tar_of("top/values.yaml", b"a" * (8 * 2**20 + 1)), "larger than any chart"),
        (tar_of("top/templates/a.yaml", b"a" * (32 * 2**20 + 1)), "larger than any chart"),
    ],
    ids=["empty", "text", "no tar", "no Chart.yaml", "no YAML", "no text", "link", "large file", "large archive"],
)
def test_what_is_no_chart(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(content)
    with pytest.raises(LabError, match=words):
        read_chart(path)
    with pytest.raises(LabError, match="cannot be read"):
        read_chart(tmp_path / "absent.tgz")
