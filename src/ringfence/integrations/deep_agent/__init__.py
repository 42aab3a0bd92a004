"""A safe agent: tool calls are authorised, watched for attacks, run in a sandbox, undone or kept, and written down."""

from ringfence.integrations.deep_agent.agent import SafeDeepAgent
from ringfence.integrations.deep_agent.audit import AuditLog, AuditSummary, verify_audit
from ringfence.integrations.deep_agent.call import ToolCall
from ringfence.integrations.deep_agent.config import Commit, SafeConfig
from ringfence.integrations.deep_agent.decision import Decision, allow_up_to
from ringfence.integrations.deep_agent.detection import ExfiltrationDetector, Finding, Step
from ringfence.integrations.deep_agent.redaction import Redactor
from ringfence.integrations.deep_agent.result import ToolResult
from ringfence.integrations.deep_agent.risk import Assessment, RiskModel

__all__ = [
    "Assessment",
    "AuditLog",
    "AuditSummary",
    "Commit",
    "Decision",
    "ExfiltrationDetector",
    "Finding",
    "Redactor",
    "RiskModel",
    "SafeConfig",
    "SafeDeepAgent",
    "Step",
    "ToolCall",
    "ToolResult",
    "allow_up_to",
    "verify_audit",
]
