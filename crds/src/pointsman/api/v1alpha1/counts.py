"""How many workers a pool has, by what they are doing. The same numbers stand on the service and on the pool."""

from pydantic import Field

from pointsman.api.v1alpha1.resource import ApiModel


class PoolCounts(ApiModel):
    """Workers of one role. ``routable`` ≤ ``ready`` ≤ ``existing``."""

    desired: int | None = Field(
        default=None, ge=0, description="Workers that were asked for. Absent: not known, for want of a WorkerPool."
    )
    existing: int = Field(default=0, ge=0, description="Worker pods there are, leaving ones not counted.")
    ready: int = Field(default=0, ge=0, description="Workers that answered a real request in this role.")
    routable: int = Field(default=0, ge=0, description="Workers the gateway may choose.")
    draining: int = Field(default=0, ge=0, description="Workers that finish what they have and then go.")
    switching: int = Field(default=0, ge=0, description="Workers on their way into this role from the other one.")
    starting: int = Field(default=0, ge=0, description="Workers whose engine loads or waits for its role.")
