"""The parts of the broker that its connections use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forelog.broker.access.control import Access
from forelog.broker.clients.acknowledgements import Acknowledgements
from forelog.broker.clients.lifecycle import Clients
from forelog.broker.clients.publications import Publications
from forelog.broker.connections.admission import Admission
from forelog.broker.connections.buffers import SharedBuffers
from forelog.broker.connections.inputs import Inputs
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.intake import Intake
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.turns import Turns
from forelog.broker.limits import Limits
from forelog.broker.notices import ClientNotices
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.session import Session
from forelog.broker.tasks import Tasks
from forelog.broker.traffic import Traffic


@dataclass(slots=True)
class Services:
    """One object for all connections, so that each holds a single reference."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    tasks: Tasks
    notices: ClientNotices
    traffic: Traffic
    admission: Admission
    buffers: SharedBuffers
    inputs: Inputs
    presence: Presence
    access: Access
    intake: Intake
    slices: Slices
    routes: Routes
    delivery: Delivery
    turns: Turns
    clients: Clients
    publications: Publications
    acknowledgements: Acknowledgements
    handlers: Mapping[type, Callable[[Session, Any], None]]
    """What handles the packets that need only the session, by type."""
