"""New rank tables, as JSON's values: `engine rank-table make`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

__all__ = ["new_table"]


def new_table(
    hosts: Sequence[str],
    devices: Sequence[int],
    version: str = "1.0",
    device_ips: Mapping[tuple[str, int], str] | None = None,
) -> dict[str, Any]:
    """Return a new table as JSON's values: the same devices on each host, ranks in that order.

    device_ips: addresses of devices, by host and device, where they are known: HCCL needs them
        between hosts.
    """
    known = device_ips or {}
    if version == "2.0":
        ranks = [(host, device) for host in hosts for device in devices]
        return {
            "version": version,
            "status": "completed",
            "rank_count": len(ranks),
            "rank_list": [
                {
                    "rank_id": rank,
                    "local_id": device,
                    "device_id": device,
                    "level_list": [_level(host, known.get((host, device), ""))],
                }
                for rank, (host, device) in enumerate(ranks)
            ],
        }
    servers = [
        {
            "server_id": host,
            **({"host_ip": host} if version == "1.2" and _is_address(host) else {}),
            "device": [
                {
                    "device_id": str(device),
                    **({"super_device_id": str(rank)} if version == "1.2" else {}),
                    **({"device_ip": known[host, device]} if (host, device) in known else {}),
                    "rank_id": str(rank),
                }
                for rank, device in enumerate(devices, place * len(devices))
            ],
        }
        for place, host in enumerate(hosts)
    ]
    table = {
        "version": version,
        "server_count": str(len(servers)),
        "status": "completed",
        "server_list": servers,
    }
    if version == "1.2":
        pod = {"super_pod_id": "0", "server_list": [{"server_id": host} for host in hosts]}
        table["super_pod_list"] = [pod]
    return table


def _level(host: str, device_ip: str) -> dict[str, Any]:
    address = {"addr_type": "IPV4", "addr": device_ip, "ports": [], "plane_id": "0"}
    return {
        "net_layer": 0,
        "net_instance_id": host,
        "net_type": "TOPO_FILE_DESC",
        "net_attr": "",
        "rank_addr_list": [address] if device_ip else [],
    }


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
