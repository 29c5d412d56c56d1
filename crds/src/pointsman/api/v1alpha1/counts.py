"""How many workers a pool has, by what they are doing. The same numbers stand on the service and on the pool."""

from pydantic import Field

from pointsman.api.v1alpha1.resource import ApiModel


class PoolCounts(ApiModel):
    """Workers of one role. ``routable`` ≤ ``ready`` ≤ ``existing``."""

    desired: int | None = Field(
        default=None, ge=0, description="Desired workers. Unset: unknown, because the WorkerPool does not exist."
    )
    existing: int = Field(default=0, ge=0, description="Worker pods that exist, terminating ones not counted.")
    ready: int = Field(default=0, ge=0, description="Workers that are verified in this role by a request.")
    routable: int = Field(default=0, ge=0, description="Workers to which gateways route requests.")
    draining: int = Field(default=0, ge=0, description="Workers that finish their requests and are then deleted.")
    switching: int = Field(default=0, ge=0, description="Workers that are switching to this role.")
    starting: int = Field(default=0, ge=0, description="Workers whose engine loads its model or waits for its role.")
