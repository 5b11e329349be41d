"""Patterns of tool results: names of tools, fields of a status, and the lines that tell how a command went."""

import re

READING = frozenset(
    [
        "read",
        "cat",
        "fetch",
        "browse",
        "browser",
        "grep",
        "search",
        "view",
        "open",
        "find",
        "glob",
        "ls",
        "list",
        "retrieve",
        "scrape",
        "crawl",
        "extract",
        "web",
    ]
)
DOING = frozenset(
    [
        "run",
        "exec",
        "execute",
        "write",
        "edit",
        "replace",
        "apply",
        "patch",
        "create",
        "update",
        "delete",
        "send",
        "test",
        "install",
    ]
)
SCREEN = frozenset(["click", "computer", "screenshot", "scroll", "type", "tap", "swipe", "hover", "press", "drag"])
"""Words of tools that act on a screen: what the page shows after it tells nothing by a line's form."""
READERS = frozenset(
    [
        "cat",
        "head",
        "tail",
        "less",
        "more",
        "bat",
        "grep",
        "rg",
        "egrep",
        "curl",
        "wget",
        "find",
        "ls",
        "view",
        "nl",
        "sed",
        "awk",
        "jq",
        "journalctl",
    ]
)
NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
SHELLS = frozenset(["bash", "sh", "zsh", "powershell", "shell", "terminal", "console", "command", "cmd", "exec"])
"""Words of tools that run a shell's command."""
COMMAND_FIELDS = ("command", "cmd", "script")
VIEWS = ("view", "open", "read")

CODE_FIELDS = ("exit_code", "exitcode", "returncode", "return_code", "exit_status")
STATE_FIELDS = ("status", "state", "phase")
DONE_FIELDS = (
    "moved", "deleted", "removed", "changed",
    "submitted", "sent", "created", "saved", "done", "complete", "completed", "delivered", "booked", "applied",
    "accepted", "found", "updated", "written", "passed", "authorized", "authenticated", "connected", "finished",
    "installed", "stored", "deployed", "confirmed", "uploaded", "processed", "valid",
)  # fmt: skip
"""Fields that are false where an action did not come about."""
INNER = ("metadata", "details", "result", "output")
BAD = frozenset({"error", "failed", "failure", "timeout", "timed_out", "aborted"})
GOOD = frozenset({"ok", "success", "succeeded", "completed", "done", "passed"})

HEADER = re.compile(
    r"(?:exit code:? ?(?P<code>-?\d+)|<(?:returncode|exit_code)>(?P<tag>-?\d+)</(?:returncode"
    r"|exit_code)>)[ \t]*(?:\n|\Z)"
    r"|(?:chunk id: [^\n]*\n)?wall time: [^\n]*\n(?:process )?exited with code (?P<wall>-?\d+)[ \t]*(?:\n|\Z)",
    re.I,
)
ERROR_HEADER = re.compile(
    r"<(?:tool_use_)?error>|error (?:invoking|executing) tool\b|(?:mcp|tool) error\b|tool ?exception", re.I
)
ENDING = re.compile(
    r"(?:\A|[(\[])(?:the )?(?:command |process |program |script )?"
    r"(?:exit(?:ed)? (?:with )?(?:exit )?(?:code|status)|exited with|(?:completed|finished"
    r"|failed) with exit (?:code|status)"
    r"|(?:exit|return)[_-]?code|return code|exit(?: status)?|rc|退出代码|退出码|終了コード|종료 코드"
    r"|код (?:возврата|завершения)|code de (?:sortie|retour)|código de (?:salida|saída)|codice di uscita|kod wyjścia"
    r"|çıkış kodu|afsluitcode"
    r"|(?:process|proces|proceso|processo|processus|prozess)\b[^\n]{0,40} (?:status|code|código|codice))"
    r"[\s:=：]{0,3}(?:of |was |is )?(?P<code>-?\d+)[\s.)\]]*\Z",
    re.I,
)
XML_ENDING = re.compile(r"<(?:returncode|exit_code)>(-?\d+)</(?:returncode|exit_code)>\s*\Z", re.I)
ABORTED = re.compile(r"\W{0,2}(?:error: )?(?:the )?command (?:timed out|aborted)\b|.{0,80}\btimed out after \d+", re.I)
RUNNING = re.compile(
    r"process running with session|.{0,60}(?:\bcommand (?:is )?still running\b|\bläuft (?:immer )?noch\b"
    r"|sigue en ejecución|toujours en cours|ancora in (?:esecuzione|corso)|ainda em execução"
    r"|wordt nog uitgevoerd|nadal (?:działa|trwa)"
    r"|ещё выполняется|еще выполняется|hâlâ çalışıyor|仍在运行|正在运行|実行中|실행 중)",
    re.I,
)
PENDING = frozenset(
    {
        "running",
        "pending",
        "queued",
        "in_progress",
        "inprogress",
        "processing",
        "waiting",
        "scheduled",
        "started",
        "initializing",
        "building",
        "provisioning",
        "creating",
        "rendering",
        "uploading",
        "deploying",
        "deferred",
    }
)
"""States of an action that goes on."""
AFTER_ENDING = re.compile(
    r"\[(?:current working directory|python interpreter): [^\n]*\]|(?:error|signal|background pids"
    r"|process group pgid):? .*"
    r"|</?(?:output|stdout|stderr|system)>|shell cwd was reset to .*",
    re.I,
)
"""Lines that clients write below the exit status."""

TESTS_FAILED = re.compile(
    r"=*\s*(?:\d+ \w+, )*[1-9]\d* (?:failed|failures?|failing|errors?)\b(?:,? \d+ \w+)*(?: in [\d.:]+\S*.*)?[\s=]*\Z"
    r"|FAILED \((?:failures|errors)=[1-9].*|tests:?\s.*\b[1-9]\d* failed\b.*|test result: FAILED\b.*|--- FAIL\b.*"
    r"|FAIL(?:\s.*)?\Z|not ok \d.*|# fail [1-9]\d*|.*\b[1-9]\d* (?:tests? failed|examples?, [1-9]\d* failures?)\b.*"
    r"|.*\b(?:failures|errors): [1-9]\d*\b.*|.*\b(?:error|fail(?:ed)?)=[1-9]\d*\b.*"
    r"|found [1-9]\d* errors?\b.*|[1-9]\d* errors? generated\.?",
    re.I,
)
TESTS_PASSED = re.compile(
    r"=*\s*[1-9]\d* (?:passed|passing)\b.*|OK\s*(?:\(.*)?\Z|test result: ok\b.*|(?:ok|PASS)\b.*"
    r"|tests:?\s.*\bpassed\b.*"
    r"|.*\ball (?:\d+ )?tests? passed\b.*|# fail 0|.*\b\d+ examples?, 0 failures\b.*|success: no issues found.*",
    re.I,
)
SUITES_FAILED = re.compile(r"\s*test (?:suites|files):?\s.*\b[1-9]\d* failed\b.*", re.I)
"""A line above that of the tests: a file of them that doesn't even load has no test that fails."""
BELOW_SUMMARY = re.compile(
    r"(?:snapshots|time|duration|start at):?\s.*|ran all test suites.*|# (?:cancelled|skipped|todo|duration_ms) .*"
    r"|error: test failed, to rerun.*|npm (?:err!|error) .*|\s*\d* ?\|.*|node\.js v\d.*",
    re.I,
)
"""Lines that test runners and compilers print below the line that tells."""

SHELL = re.compile(
    r"(?:fatal|error|npm err!)(?:\[\w+\])?: +\S|failed to \w|unable to \w|npm err! "
    r"|[\w./-]+: (?:line \d+: )?.{0,300}(?:command not found"
    r"|No such file or directory|Permission denied|Is a directory|cannot access|not recognized)|zsh: .{0,300}not found"
    r"|\S+:\d+(?::\d+)?: (?:fatal )?error: |\S+\(\d+,\d+\): error |make(?:\[\d+\])?: \*\*\*|Segmentation fault"
    r"|error: (?:could not compile|aborting due to)|ninja: build stopped|collect2: error|\W*build failed\b"
    r"|msg \d+, level (?:1[1-9]|2\d),|(?:ora|pls)-\d{5}:|error \d{4} \(\w+\)|\+ fullyqualifiederrorid\b"
    r"|tool ?exception|(?:exception|uncaught exception|panic): \S",
    re.I,
)
ERROR_LINE = re.compile(
    r"(?:erro|errore|erreur|fehler|fout|fel|hata|błąd|ошибка|помилка|错误|エラー|오류|त्रुटि|خطأ)(?: ?\d{3})?\s?[:：]"
    r"|4\d\d: ['\"\w]|http(?:/\d(?:\.\d)?)? 4\d\d\b"
    r"|(?:http )?(?:error|erro|errore|erreur|fehler|fout|fel|hata|błąd|ошибка) 4\d\d\b",
    re.I,
)
"""How a result of one line reports an error in other languages, or by an HTTP status."""
REPORTS_SUCCESS = re.compile(
    r"(?:the )?(?:file|directory|folder|todos?|notebook|cell)\b.{0,300}"
    r"\b(?:has|have) been (?:updated|created|edited|written|modified|saved)\b"
    r"|(?:file|directory) (?:created|written|updated) successfully\b"
    r"|successfully (?:wrote|replaced|created|updated|edited)\b",
    re.I,
)
"""Sentences with which clients report that a tool of theirs worked."""
EXCEPTION = re.compile(
    r"(?:Uncaught )?(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Timeout)\b(?: \[\w+\])?(?::.*)?\Z"
)
STACK = re.compile(r"\s+at \S|\s+\.\.\. \d+ more|\s*\^|goroutine \d")
STACK_HEAD = re.compile(
    r"(?:Exception in thread |panic: |thread '.{0,80}' panicked|(?:Uncaught )?[\w.]*(?:Error|Exception)\b)"
)
TRACEBACK = "Traceback (most recent call last):"
EDGE = 4000
"""Characters at either end of a text that are looked at."""
FEW_LINES = 5
SUMMARY_LINES = 12
"""Lines at the end of an output among which a test summary stands."""
