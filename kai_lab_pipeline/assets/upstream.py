"""What the lab takes from elsewhere: charts and a manifest, at the versions pinned in lab.toml."""

from typing import Any

import dagster as dg

from kai_lab_pipeline.assets.group import digest
from kai_lab_pipeline.clients.local_chart import chart_content
from kai_lab_pipeline.settings import Settings
from kai_lab_pipeline.workbench.apply import manifest_text


def upstream_assets(settings: Settings, group_name: str) -> list[dg.AssetsDefinition]:
    """charts/kai_scheduler, charts/nvml_mock, charts/kai_resource_isolator and manifests/device_plugin."""
    charts = [_chart(component, settings, group_name) for component in settings.charts.by_component()]
    return [*charts, _device_plugin(settings, group_name)]


def _chart(component: str, settings: Settings, group_name: str) -> dg.AssetsDefinition:
    chart = settings.charts.by_component()[component]

    @dg.asset(
        name=component,
        key_prefix=["charts"],
        group_name=group_name,
        kinds={"helm"},
        code_version=digest(chart.chart, chart.version, chart_content(settings.root, chart)),
        description=(
            f"The chart of {component} at the version that lab.toml pins. Its data version is that version, with a "
            f"digest of what is in it where it is a folder or an archive of this machine, so that moving the pin or "
            f"editing the chart turns the release unsynced and names the reason."
        ),
    )
    def pinned_chart() -> dg.MaterializeResult[Any]:
        content = chart_content(settings.root, chart)
        return dg.MaterializeResult(
            metadata={"chart": chart.chart, "version": chart.version} | ({"content": content} if content else {}),
            data_version=dg.DataVersion(f"{chart.version}-{content}" if content else chart.version),
        )

    return pinned_chart


def _device_plugin(settings: Settings, group_name: str) -> dg.AssetsDefinition:
    manifest = settings.manifests.device_plugin
    text = manifest_text(settings, "device_plugin")

    @dg.asset(
        name="device_plugin",
        key_prefix=["manifests"],
        group_name=group_name,
        kinds={"yaml"},
        code_version=digest(manifest.version, text),
        description=(
            "The device plugin's manifest. Upstream moves it; here it is pinned. Its data version is the plugin's "
            "version with a digest of the file."
        ),
    )
    def pinned_manifest() -> dg.MaterializeResult[Any]:
        found = f"{manifest.version}-{digest(text)}"
        return dg.MaterializeResult(
            metadata={"file": manifest.file, "source": manifest.source, "version": manifest.version},
            data_version=dg.DataVersion(found),
        )

    return pinned_manifest
