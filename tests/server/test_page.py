"""The page in headless Chromium, while requests run."""

import shutil
import threading

import pytest
from server.live_server import Both, LiveServer, wait_until
from server.scripted_program import ScriptedProgram, chat_prompt

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="needs chromium and chromedriver"
)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def loaded():
    """A server whose slots are busy for as long as the tests run."""
    program = ScriptedProgram(slots=4, ctx_len=512, delay_s=0.02)
    program.script(chat_prompt("hello"), "Hi, it is me.")
    with LiveServer(program) as server:
        endpoint = Both(server.ready(), "completions")
        ending = threading.Event()

        def keep_busy(name):
            while not ending.is_set():
                endpoint.whole(name, max_tokens=60, ignore_eos=True, user=name)

        clients = [threading.Thread(target=keep_busy, args=(name,)) for name in ("alice", "bob")]
        for client in clients:
            client.start()
        yield server
        ending.set()
        for client in clients:
            client.join()


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )


def drawn(browser, plot):
    """Points of the longest line in a plot."""
    script = "return [...document.querySelectorAll(arguments[0])].map((line) => line.getAttribute('d'))"
    lines = browser.execute_script(script, f"{plot} path.js-line")
    return max((line.count("L") + line.count(",") for line in lines if line), default=0)


def test_the_page_shows_what_runs(browser, loaded):
    browser.get(loaded.url)
    wait_until(lambda: any("alice" in text for text in texts(browser, ".slot.decode")))
    wait_until(lambda: any("bob" in text for text in texts(browser, ".slot.decode")))
    assert len(texts(browser, ".slot")) == 4
    wait_until(lambda: any(text.startswith("decode b=2") for text in texts(browser, ".row.lit")))
    assert not any(text.startswith("decode b=4") for text in texts(browser, ".row.lit"))
    wait_until(lambda: float(texts(browser, "#rate")[0]) > 0)
    wait_until(lambda: all(drawn(browser, plot) > 2 for plot in ("#speed", "#latency")))
    assert browser.get_log("browser") == []


def test_the_chat_box_streams_an_answer(browser, loaded):
    browser.get(loaded.url)
    browser.find_element("id", "text").send_keys("hello\n")
    wait_until(lambda: texts(browser, ".message.assistant") == ["Hi, it is me."])
    assert texts(browser, ".message.user") == ["hello"]


def test_nothing_is_asked_of_other_machines(browser, loaded):
    import json

    browser.get(loaded.url)
    wait_until(lambda: texts(browser, ".slot"))
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert any(url.endswith("/static/plotly.js") for url in asked)
    assert all(url.startswith((loaded.url, "data:", "blob:")) for url in asked)


def test_the_docs_describe_the_endpoints_and_their_fields(browser, loaded):
    browser.get(f"{loaded.url}/docs")
    wait_until(lambda: "POST /v1/chat/completions" in texts(browser, "h2"))
    assert any(text.startswith("temperature number (0 to 2)") for text in texts(browser, "li"))
    assert browser.get_log("browser") == []


def test_the_page_fits_a_phone(browser, loaded):
    browser.set_window_size(400, 800)
    try:
        browser.get(loaded.url)
        wait_until(lambda: texts(browser, ".slot"))
        width = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1]
    finally:
        browser.set_window_size(1280, 1000)


def test_a_guarded_server_asks_for_its_key(browser):
    with LiveServer(ScriptedProgram(), api_keys=("sesame",)) as server:
        server.ready()
        browser.get(server.url)
        wait_until(lambda: browser.find_element("id", "key-form").is_displayed())
        assert texts(browser, ".slot") == []
        browser.find_element("id", "key").send_keys("sesame\n")
        wait_until(lambda: texts(browser, ".slot"))
