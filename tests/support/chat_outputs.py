"""What models of many families write, as their makers say: thoughts, and calls of these tools."""

from typing import Any

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("get_weather", "forecast")
)
PARIS, BONN = {"city": "Paris", "days": 3}, {"city": 'a "b"'}
XML = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
NS = "]<]minimax[>["
INVOKE = 'invoke name="get_weather">\n'
BEFORE_ANSWER = {  # what a model writes before its answer, where that is more than nothing
    "harmony": "<|channel|>final<|message|>",
    "solar": "<|content|>",
    "muse": " to=user<|message|>",
    "kimi-tags": "<|open|>response<|sep|>",
    "functionary": "all\n",
}
AFTER_ANSWER = {"kimi-tags": "<|close|>response<|sep|><|close|>message<|sep|>", "solar": "<|end|>"}
# by syntax: marks that are tokens, thoughts as it writes them, one call or two, and their arguments
CASES: dict[str, tuple[str, str, str, list[Any]]] = {
    "harmony": (
        "<|channel|> <|message|> <|start|> <|end|> <|constrain|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris","days":3}',
        [PARIS],
    ),
    "gemma4": (
        '<|tool_call> <tool_call|> <|channel> <channel|> <|"|>',
        "<|channel>thought\nHm.<channel|>",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:forecast{city:<|"|>a "b"<|"|>}<tool_call|>',
        [PARIS, BONN],
    ),
    "mistral-call-id": (
        "[TOOL_CALLS] [CALL_ID] [ARGS] [THINK] [/THINK]",
        "[THINK]Hm.[/THINK]",
        '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris", "days": 3}'
        '[TOOL_CALLS]forecast[CALL_ID]abc123deg[ARGS]{"city": "a \\"b\\""}',
        [PARIS, BONN],
    ),
    "mistral-args": (
        "[TOOL_CALLS] [ARGS] [THINK] [/THINK]",
        "[THINK]Hm.[/THINK]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
        [PARIS],
    ),
    "mistral-list": (
        "[TOOL_CALLS]",
        "",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}, "id": "abc123def"}, '
        '{"name": "forecast", "arguments": {"city": "a \\"b\\""}}]',
        [PARIS, BONN],
    ),
    "deepseek-dsml": (
        "｜DSML｜ <think> </think>",
        "<think>Hm.</think>",
        f'<｜DSML｜function_calls>\n<｜DSML｜{INVOKE}<｜DSML｜parameter name="city" string="true">Paris'
        "</｜DSML｜parameter>\n"
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [PARIS],
    ),
    "deepseek-r1": (
        "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
        "<think> </think>",
        "<think>\nHm.\n</think>\n\n",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [PARIS],
    ),
    "deepseek": (
        "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
        "<think> </think>",
        "<think>\nHm.\n</think>\n\n",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "days": 3}'
        '<｜tool▁call▁end｜><｜tool▁call▁begin｜>forecast<｜tool▁sep｜>{"city": "a \\"b\\""}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        [PARIS, BONN],
    ),
    "kimi": (
        "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|> "
        "<|tool_call_argument_begin|> <think> </think>",
        "<think>Hm.</think>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
        [PARIS],
    ),
    "minimax": (
        "<minimax:tool_call> </minimax:tool_call> <think> </think>",
        "<think>Hm.</think>\n\n",
        f'<minimax:tool_call>\n<{INVOKE}<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="forecast">\n<parameter name="city">a "b"'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
        [PARIS, BONN],
    ),
    "minimax-nested": (
        "]<]minimax[>[ <mm:think> </mm:think>",
        "<mm:think>Hm.</mm:think>",
        f'{NS}<tool_call>\n{NS}<invoke name="get_weather">{NS}<city>Paris{NS}</city>{NS}<days>3{NS}</days>'
        f'{NS}</invoke>\n{NS}<invoke name="forecast">{NS}<city>a "b"{NS}</city>{NS}</invoke>\n{NS}</tool_call>',
        [PARIS, BONN],
    ),
    "solar": (
        "<|begin|> <|end|> <|content|> <|think|> <|tool_calls|> <|calls|> <|tool_call:begin|> <|tool_call:name|> "
        "<|tool_call:args|> <|tool_call:end|>",
        "<|think|>Hm.<|end|><|begin|>assistant",
        '<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris", '
        '"days": 3}<|tool_call:end|><|tool_call:begin|>a1b2c3d4e6<|tool_call:name|>forecast<|tool_call:args|>'
        '{"city": "a \\"b\\""}<|tool_call:end|><|calls|>',
        [PARIS, BONN],
    ),
    "muse": (
        "<|start|> <|message|> <|eom|>",
        " to=self<|message|>Hm.<|eom|><|start|>assistant",
        f' to=get_weather<|message|><atem:function_calls>\n<atem:{INVOKE}<atem:parameter name="city">Paris'
        '</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        [PARIS],
    ),
    "kimi-tags": (
        "<|open|> <|sep|> <|close|>",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
        'type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>'
        'argument<|sep|><|close|>call<|sep|><|open|>call tool="forecast" index="2"<|sep|><|open|>argument key="city" '
        'type="string"<|sep|>a "b"<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        [PARIS, BONN],
    ),
    "gigachat": (
        "<|role_sep|> <|message_sep|>",
        "",
        'function call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        [PARIS],
    ),
    "functionary": (
        "<|start_header_id|>",
        "",
        'get_weather\n{"city": "Paris", "days": 3}>>>forecast\n{"city": "a \\"b\\""}',
        [PARIS, BONN],
    ),
    "seed": (
        "<seed:tool_call> </seed:tool_call> <seed:think> </seed:think>",
        "<seed:think>Hm.</seed:think>",
        f"<seed:tool_call>\n{XML}</seed:tool_call>",
        [PARIS],
    ),
    "glm": (
        "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <think> </think>",
        "\n<think>Hm.</think>\n",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n"
        '<tool_call>forecast<arg_key>city</arg_key><arg_value>a "b"</arg_value></tool_call>',
        [PARIS, BONN],
    ),
    "function-xml": (
        "<tool_call> </tool_call> <think> </think>",
        "<think>\nHm.\n</think>\n\n",
        f"<tool_call>\n{XML}</tool_call>\n<tool_call>\n"
        '<function=forecast>\n<parameter=city>\na "b"\n</parameter>\n</function>\n</tool_call>',
        [PARIS, BONN],
    ),
    "lfm2": (
        "<|tool_list_start|> <|tool_call_start|> <|tool_call_end|>",
        "",
        '<|tool_call_start|>[get_weather(city="Paris", days=3), forecast(city=\'a "b"\')]<|tool_call_end|>',
        [PARIS, BONN],
    ),
    "function-calls": (
        "<function_calls> </function_calls> <think> </think>",
        "<think>Hm.</think>",
        '<function_calls>get_weather(city="Paris", days=3)\nforecast(city="a \\"b\\"")</function_calls>',
        [PARIS, BONN],
    ),
    "function-params": (
        "<think> </think>",
        "<think>\nHm.\n</think>\n\n",
        '<function name="get_weather"><param name="city">Paris</param><param name="days">3</param></function>\n'
        '<function name="forecast"><param name="city">a "b"</param></function>',
        [PARIS, BONN],
    ),
    "hunyuan": (
        "<tool_calls:opensource> </tool_calls:opensource> <tool_call:opensource> </tool_call:opensource> "
        "<tool_sep:opensource> <arg_key:opensource> </arg_key:opensource> <arg_value:opensource> "
        "</arg_value:opensource> <think:opensource> </think:opensource>",
        "<think:opensource>Hm.</think:opensource>",
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>forecast<tool_sep:opensource>\n"
        '<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>a "b"</arg_value:opensource>\n'
        "</tool_call:opensource>\n</tool_calls:opensource>",
        [PARIS, BONN],
    ),
    "tool-calls-list": (
        "<tool_calls> </tool_calls>",
        "",
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, '
        '{"name": "forecast", "arguments": {"city": "a \\"b\\""}}]</tool_calls>',
        [PARIS, BONN],
    ),
    "tool-calls": (
        "<tool_calls> </tool_calls>",
        "",
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        '{"name": "forecast", "arguments": {"city": "a \\"b\\""}}\n</tool_calls>',
        [PARIS, BONN],
    ),
    "function-call-mark": (
        "<|function_call|>",
        "",
        '<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        [PARIS],
    ),
    "llama4-pythonic": (
        "<|python_start|> <|python_end|>",
        "",
        '<|python_start|>[get_weather(city="Paris", days=3)]<|python_end|>',
        [PARIS],
    ),
    "apertus": (
        "<|tools_prefix|> <|tools_suffix|> <|inner_prefix|> <|inner_suffix|>",
        "<|inner_prefix|>Hm.<|inner_suffix|>",
        '<|tools_prefix|>[{"get_weather": {"city": "Paris", "days": 3}}, {"forecast": {"city": "a \\"b\\""}}]'
        "<|tools_suffix|>",
        [PARIS, BONN],
    ),
    "command-r7b": (
        "<|START_ACTION|> <|END_ACTION|> <|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",
        "<|START_THINKING|>Hm.<|END_THINKING|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", '
        '"days": 3}},\n    {"tool_call_id": "1", "tool_name": "forecast", "parameters": {"city": "a \\"b\\""}}\n]'
        "<|END_ACTION|>",
        [PARIS, BONN],
    ),
    "phi4": (
        "<|tool_call|> <|/tool_call|>",
        "",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]<|/tool_call|>',
        [PARIS],
    ),
    "granite3": (
        "<|tool_call|>",
        "",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]',
        [PARIS],
    ),
    "hermes": (
        "<tool_call> </tool_call> <think> </think>",
        "<think>\nI could write <tool_call> now.\n</think>\n\n",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name":"forecast","arguments":{"city":"a \\"b\\""}}\n</tool_call>',
        [PARIS, BONN],
    ),
    "json": ("<|python_tag|>", "", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}', [PARIS]),
}
